"""Preference pairs, in the formats that TRL reads:

- `prompt`, `chosen` and `rejected` as chat messages, with `tools` or without; `chosen` and
  `rejected` may be one message
- `chosen` and `rejected` as whole conversations; what they begin with alike is the prompt. `prompt`
  may then be a text, which they contain
- all of them as plain texts, the prompt again also within the other two
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ale_jax.recorded.conversation import ASSISTANT, Conversation
from ale_jax.recorded.messages import of_messages

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"
Message = Mapping[str, Any]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A plain text, and what goes on from it."""

    prompt: str
    text: str

    @property
    def beginning(self) -> bytes:
        """A digest of the prompt."""
        return hashlib.sha256(self.prompt.encode("utf-8", "surrogatepass")).digest()


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two answers to one prompt. Of conversations, the replies of the prompt are not learned."""

    chosen: Conversation | Continuation
    rejected: Conversation | Continuation

    @property
    def beginning(self) -> bytes:
        """A digest of the prompt, of a conversation up to its first reply."""
        return self.chosen.beginning


def of_pair(record: Mapping[str, Any]) -> Pair:
    """Reads a preference pair. ValueError, which begins with the field, for what is missing or
    wrong."""
    for field in (CHOSEN, REJECTED):
        if record.get(field) is None:
            named = ", ".join(record) or "none"
            raise ValueError(f"{field}: a pair needs {CHOSEN} and {REJECTED}; there are {named}")
    if isinstance(record[CHOSEN], str):
        return _of_texts(record)
    answers = [_messages(record, field) for field in (CHOSEN, REJECTED)]
    prompt = record.get(PROMPT)
    if isinstance(prompt, list):
        prompt = _messages(record, PROMPT)
    else:
        prompt, answers = _shared(answers, prompt)
    chosen, rejected = (
        _conversation(record, field, prompt, answer)
        for field, answer in zip((CHOSEN, REJECTED), answers, strict=True)
    )
    return Pair(chosen, rejected)


def _of_texts(record: Mapping[str, Any]) -> Pair:
    chosen, rejected = (_text(record, field) for field in (CHOSEN, REJECTED))
    if record.get(PROMPT) is None:
        prompt = _whole_words("".join(_common(chosen, rejected)))
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    else:
        prompt = _text(record, PROMPT)
    for field, text in ((CHOSEN, chosen), (REJECTED, rejected)):
        if not text:
            raise ValueError(f"{field}: it is empty")
    return Pair(Continuation(prompt, chosen), Continuation(prompt, rejected))


def _text(record: Mapping[str, Any], field: str) -> str:
    text = record[field]
    if not isinstance(text, str):
        raise ValueError(f"{field}: {text!r:.80} is no text, as {CHOSEN} is")
    return text


def _whole_words(text: str) -> str:
    """The text without a last word that may be unfinished, and the space before it, which
    tokenizers take to what follows."""
    ends = [n for n, character in enumerate(text) if character.isspace()]
    return text[: ends[-1]] if ends else ""


def _common(first: Sequence[T], second: Sequence[T]) -> list[T]:
    """What both begin with."""
    both = zip(first, second, strict=False)
    return [one for one, other in itertools.takewhile(lambda each: each[0] == each[1], both)]


def _messages(record: Mapping[str, Any], field: str) -> list[Message]:
    value = record[field]
    messages = [value] if isinstance(value, dict) else value
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{field}: {value!r:.80} is no list of messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"{field}.{number}: {message!r:.80} is no object")
    return messages


def _shared(
    answers: Sequence[list[Message]], told: Any
) -> tuple[list[Message], list[list[Message]]]:
    """Parts whole conversations into what they share, and the rest of each. told: the prompt as a
    text, if the record has one."""
    prompt = _common(*answers)
    if not prompt:
        raise ValueError(f"{PROMPT}: it is missing, and {CHOSEN} and {REJECTED} begin differently")
    if told is not None and not any(message.get("content") == told for message in prompt):
        raise ValueError(
            f"{PROMPT}: {told!r:.80} is neither a list of messages, nor the text of one that "
            f"{CHOSEN} and {REJECTED} begin with"
        )
    return prompt, [answer[len(prompt) :] for answer in answers]


def _conversation(
    record: Mapping[str, Any], field: str, prompt: Sequence[Message], answer: Sequence[Message]
) -> Conversation:
    told = {"messages": [*prompt, *answer], "tools": record.get("tools")}
    try:
        read = of_messages(told)
    except ValueError as error:
        raise ValueError(f"{field}, after {PROMPT}: {error}") from None
    given = sum(message.get("role") == ASSISTANT for message in prompt)
    learned = (*[False] * given, *read.learned[given:])
    return dataclasses.replace(read, learned=learned)
