"""Conversations as samples to imitate, in the ids that the gateway would have for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ale_jax.config.learn import Shape
from ale_jax.config.recorded import DROP
from ale_jax.data.packing import Sample, demonstration
from ale_jax.gateway.custody.engine_policy import ChatRender, for_template
from ale_jax.gateway.messages import ChatMessage
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.conversation import ASSISTANT, Conversation

Exchange = tuple[np.ndarray, np.ndarray]  # the ids before a reply, and those of the reply
TOO_LONG, NOTHING = "too long", "no reply to learn"


class Dropped(ValueError):
    """A conversation is not learned from. The message is the reason, by which they are counted."""


def sample_of(
    conversation: Conversation,
    mask: np.ndarray,
    tokenizer: ChatTokenizer,
    shape: Shape,
    too_long: str,
) -> Sample:
    """Returns a conversation as a sample, whose chunks are the replies that are learned. Others
    are context for the next one, and what comes after the last one is left out.

    mask: [K], of the K replies those that are learned. too_long: DROP or CUT, as the config has it.

    Raises:
      Dropped: there is nothing to learn, or it cannot be written by the policy's template.
    """
    exchanges = learned_exchanges(exchanges_of(conversation, tokenizer), mask)
    if not exchanges:
        raise Dropped(NOTHING)
    fitting = _fitting(exchanges, shape)
    if not fitting or (too_long == DROP and fitting < len(exchanges)):
        raise Dropped(TOO_LONG)
    return demonstration(exchanges[:fitting])


def exchanges_of(conversation: Conversation, tokenizer: ChatTokenizer) -> list[Exchange]:
    """Returns the ids of each reply, and those that come before it since the last one: what a token
    tree has of a conversation in which the policy gives these replies."""
    render, tools = ChatRender(tokenizer), [dict(tool) for tool in conversation.tools]
    exchanges: list[Exchange] = []
    new: list[ChatMessage] = []
    last: ChatMessage | None = None
    for message in _renumbered(conversation.messages):
        if message.role != ASSISTANT:
            new.append(message)
            continue
        if not new:
            raise Dropped("a reply without a message before it")
        after = exchanges[-1][1] if exchanges else None
        try:
            prompt_ids = render(new, tools, after, last)
            if conversation.as_written:
                reply_ids = tokenizer.reply_ids(message.content)
            else:
                reply_ids = tokenizer.turn_ids(for_template(message))
        except ValueError as error:
            raise Dropped(str(error)) from error
        exchanges.append((prompt_ids, reply_ids))
        new, last = [], message
    return exchanges


def learned_exchanges(exchanges: Sequence[Exchange], mask: np.ndarray) -> list[Exchange]:
    """Returns the exchanges whose replies are learned. A masked reply becomes part of the prompt of
    the next one, so that it is context and not a chunk."""
    found: list[Exchange] = []
    context: list[np.ndarray] = []
    for (prompt_ids, reply_ids), is_learned in zip(exchanges, mask, strict=True):
        context.append(prompt_ids)
        if is_learned:
            found.append((np.concatenate(context), reply_ids))
            context = []
        else:
            context.append(reply_ids)
    return found


def _fitting(exchanges: Sequence[Exchange], shape: Shape) -> int:
    """Returns how many of the exchanges, from the first on, fit a row."""
    lengths = [len(prompt_ids) + len(reply_ids) for prompt_ids, reply_ids in exchanges]
    fits = np.cumsum(lengths) <= shape.pack_length
    return min(int(fits.sum()), shape.chunks_per_pack)


def _renumbered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages with ids of calls as short as some templates want them."""
    ids: dict[str, str] = {}

    def new(id: str) -> str:
        return id and ids.setdefault(id, f"{len(ids):09d}")

    return [
        dataclasses.replace(
            message,
            tool_calls=tuple(dataclasses.replace(c, id=new(c.id)) for c in message.tool_calls),
            answers=new(message.answers),
        )
        for message in messages
    ]
