"""The formats of records, which their fields tell apart:

- `world`, `family`, `item`: an episode of ours, of `ale-jax eval` or a run's evaluation
- `messages`: OpenAI's chat messages, also with tools
- `conversations`: ShareGPT
- `steps`: ATIF
- `text`: plain text
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ale_jax.evaluation.episodes import EpisodeRecord
from ale_jax.recorded.atif import of_atif
from ale_jax.recorded.conversation import Conversation, with_calls
from ale_jax.recorded.messages import of_messages, of_sharegpt, reward_of
from ale_jax.recorded.plain import Text, of_text

TEXT = "text"
Read = Callable[[Mapping[str, Any]], Conversation]


def read_record(record: Mapping[str, Any]) -> Conversation | Text:
    """Returns what is learned of a record. ValueError, which begins with the field, for what is
    missing or wrong."""
    for fields, read in _FORMATS.items():
        if all(field in record for field in fields):
            return read(record)
    if TEXT in record:
        return of_text(record, reward_of(record))
    known = ", ".join([*(fields[0] for fields in _FORMATS if len(fields) == 1), TEXT])
    raise ValueError(f"{known}: none of these fields is there, but {', '.join(record) or 'none'}")


def conversation_of(record: Mapping[str, Any]) -> Conversation:
    """Returns the conversation of a record. ValueError as from `read_record`, or if it is a plain
    text."""
    read = read_record(record)
    if isinstance(read, Text):
        raise ValueError("text: it is no conversation")
    return read


def of_episode(record: Mapping[str, Any]) -> Conversation:
    """Reads an episode of ours. Its replies are the policy's own texts or, where the world offers
    tools, have their calls in one form for all models. ValueError as from `conversation_of`."""
    try:
        episode = EpisodeRecord.from_json(record)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not an episode: {error!s:.200}") from None
    if not episode.messages:
        raise ValueError("messages: the episode has none, as its line would have been too long")
    tools = list(episode.tools)
    told = {"messages": list(episode.messages), "tools": tools, "reward": episode.reward}
    read = dataclasses.replace(of_messages(told), item=episode.key, as_written=not tools)
    return dataclasses.replace(read, messages=with_calls(read.messages)) if tools else read


_FORMATS: Mapping[tuple[str, ...], Read] = {
    ("world", "family", "item"): of_episode,
    ("messages",): of_messages,
    ("conversations",): of_sharegpt,
    ("steps",): of_atif,
}
