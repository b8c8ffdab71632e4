"""What an agent adds to a reply when it tells it again: a message behind it.

Some agents keep a reply together with their own account of what it led to. The reply is then still
what the policy wrote, and the conversation goes on from its ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from ale_jax.gateway.messages import ChatMessage, path_keys


class Answered(Protocol):
    """A call, as in `custody.calls`."""

    @property
    def reply(self) -> ChatMessage | None: ...

    @property
    def stop_text(self) -> str: ...


def with_additions(
    start: bytes, messages: Sequence[ChatMessage], by_start: Mapping[bytes, Sequence[Answered]]
) -> tuple[ChatMessage, ...]:
    """Returns the messages, where one that begins with a reply of the policy is that reply and,
    behind it, a message with the rest. start: the key of what comes before them. by_start: the
    answered calls by the keys of their prompts."""
    found: list[ChatMessage] = []
    for message in messages:
        calls = by_start.get(start, ()) if message.role == "assistant" else ()
        replies = [(call.reply, call.stop_text) for call in calls if call.reply is not None]
        # The whole of a long reply says more than the beginning of a short one, or the newest.
        replies.sort(key=lambda each: len(each[0].content))
        split = (_split(message, *each) for each in reversed(replies))
        parts = next((each for each in split if each), [message])
        found += parts
        start = path_keys(start, parts)[-1]
    return tuple(found)


def _split(told: ChatMessage, reply: ChatMessage, stop_text: str) -> list[ChatMessage]:
    """Returns the reply and what stands behind it; [] if the message does not begin with it.

    >>> reply = ChatMessage("assistant", "I run ls.")
    >>> _split(ChatMessage("assistant", "I run ls.\\nIt has run."), reply, "")[1].content
    'It has run.'
    """
    said, text = reply.content.strip(), told.content.strip()
    # Results follow calls: no other message may come between them.
    if told.tool_calls or reply.tool_calls or not said or not text.startswith(said):
        return []
    rest = text[len(said) :]
    if stop_text and rest.lstrip().startswith(stop_text):
        rest = rest.lstrip()[len(stop_text) :]  # which the ids of the reply have
    elif "\n" not in rest[: len(rest) - len(rest.lstrip())]:
        return []  # the same message, or another one that happens to begin alike
    same = dataclasses.replace(told, content=reply.content)
    rest = rest.strip()
    return [same, dataclasses.replace(told, content=rest, reasoning="")] if rest else [same]
