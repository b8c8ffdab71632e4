"""The messages that an agent's model reads, made of its events only."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable, Iterator

from ale_jax.agent.assistant.events import (
    Asked,
    CallEnded,
    Compacted,
    Event,
    OutputsMoved,
    Replied,
    Started,
)
from ale_jax.agent.assistant.messages import AssistantCall, Message, assistant_message, num_chars

CHARS_PER_TOKEN = 4.0  # until the endpoint has reported how many there are
INTERRUPTED = "There is no result: the session was interrupted."
CONTINUES = "The work so far, of which only this summary is left:\n\n"
LONG_OUTPUT = 1000  # characters; a reference to a file saves nothing on what is shorter
NEWEST_KEPT = 4  # outputs that the model is probably still working with


class Conversation:
    """The messages of one agent, made of the events that have its name."""

    def __init__(self, agent: str = "", events: Iterable[Event] = ()):
        self._agent = agent
        self._messages: list[Message] = []
        self._request = ""
        self._call_ids: set[str] = set()
        self._chars_per_token = CHARS_PER_TOKEN
        self._known_tokens, self._num_known = 0, 0  # as the endpoint counted, and of which messages
        for event in events:
            self.add(event)

    @property
    def has_begun(self) -> bool:
        return bool(self._messages)

    def add(self, event: Event) -> None:
        if event.agent != self._agent:
            return
        match event:
            case Started():
                self._messages = [{"role": "system", "content": event.system_prompt}]
            case Asked():
                self._answer_open_calls()
                self._request = event.text
                self._messages.append({"role": "user", "content": event.text})
            case Replied(for_summary=False):
                self._answer_open_calls()
                self._add_reply(event)
            case CallEnded():
                self._add_result(event.call_id, event.output)
            case OutputsMoved():
                self._move(event.files)
            case Compacted():
                self._compact(event.summary)

    def messages(self) -> list[Message]:
        """Returns what to ask the model with."""
        self._answer_open_calls()
        return list(self._messages)

    def num_tokens(self) -> int:
        """Estimates the tokens of the conversation: the endpoint's own count, and the characters of
        what came after it."""
        new = sum(map(num_chars, self._messages[self._num_known :]))
        return self._known_tokens + round(new / max(self._chars_per_token, 0.1))

    def with_own_ids(self, calls: Iterable[AssistantCall]) -> tuple[AssistantCall, ...]:
        """Gives calls whose id is taken a new one. Some endpoints count calls anew in each reply,
        so that a result would answer several."""
        taken, found = set(self._call_ids), []
        for call in calls:
            if call.id in taken:
                call = dataclasses.replace(call, id=f"call_{secrets.token_hex(8)}")
            taken.add(call.id)
            found.append(call)
        return tuple(found)

    def long_outputs(self) -> Iterator[tuple[str, str]]:
        """Yields call's id and content of the results that are long and not among the newest."""
        results = [each for each in self._messages if each["role"] == "tool"]
        for message in results[:-NEWEST_KEPT]:
            if len(message["content"]) > LONG_OUTPUT:
                yield message["tool_call_id"], message["content"]

    def _add_reply(self, event: Replied) -> None:
        message = assistant_message(event.content, event.reasoning, event.calls)
        self._messages.append(message)
        self._call_ids.update(call.id for call in event.calls)
        if event.usage is not None and event.usage.prompt > 0:
            self._known_tokens = event.usage.prompt + event.usage.completion
            self._num_known = len(self._messages)
            # Languages and tokenizers differ, and without the count that is all there is to know.
            self._chars_per_token = sum(map(num_chars, self._messages)) / self._known_tokens

    def _add_result(self, call_id: str, output: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": output})

    def _answer_open_calls(self) -> None:
        """Endpoints refuse a conversation in which a call has no result."""
        for number in range(len(self._messages) - 1, -1, -1):
            message = self._messages[number]
            if message["role"] != "tool":
                answers = self._messages[number + 1 :]
                answered = {each["tool_call_id"] for each in answers}
                for call in message.get("tool_calls", ()):
                    if call["id"] not in answered:
                        self._add_result(call["id"], INTERRUPTED)
                return

    def _move(self, files: dict[str, str]) -> None:
        for message in self._messages:
            path = files.get(message.get("tool_call_id", ""))
            if path is not None and len(message["content"]) > LONG_OUTPUT:
                size = len(message["content"])
                message["content"] = f"[{size} characters, which can be read in {path}]"
        self._forget_count()

    def _compact(self, summary: str) -> None:
        text = f"{CONTINUES}{summary}\n\nThe newest request:\n\n{self._request}"
        self._messages = [self._messages[0], {"role": "user", "content": text}]
        self._forget_count()

    def _forget_count(self) -> None:
        """The endpoint counted messages that are no more."""
        self._known_tokens, self._num_known = 0, 0
