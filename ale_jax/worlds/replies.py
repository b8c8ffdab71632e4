"""What a policy wrote, as a world reads it: a text, in which calls of tools are told apart.

Models write calls in formats of their own, which the gateway reads. A world gets all of them in
one, so that a reply stays a text that can be recorded, replayed and demonstrated:

    I look first.
    <tool_call>
    {"name": "ls", "arguments": {"all": true}}
    </tool_call>
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ale_jax.strict_json import read_json
from ale_jax.tagged_text import THINK, THINK_END, read_tagged, split_thoughts

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a tool. arguments: by name, of any JSON type."""

    name: str
    arguments: Mapping[str, Any]


class Reply(str):
    """A reply of the policy. It is hostile: a call may name a tool that there is not, and have any
    arguments."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls, in order."""
        return self._parts.calls

    @property
    def content(self) -> str:
        """The rest, without thoughts. A call that cannot be read stays in it."""
        return self._parts.content

    @property
    def thoughts(self) -> str:
        """What was thought before the rest."""
        return self._parts.thoughts

    @property
    def malformed(self) -> int:
        """The number of calls that cannot be read."""
        return self._parts.malformed

    @cached_property
    def _parts(self) -> _Parts:
        return _read(self)


def write_reply(content: str = "", calls: Sequence[Call] = ()) -> str:
    """Returns a reply that makes the calls, for oracles."""
    written = [(each.name, json.dumps(dict(each.arguments), ensure_ascii=False)) for each in calls]
    return reply_text(content, "", written)


def reply_text(content: str, thoughts: str, calls: Sequence[tuple[str, str]]) -> str:
    """Returns a reply that an API tells in parts. calls: names, and arguments as JSON, which may be
    malformed if the policy wrote it."""
    parts = [f"{THINK}\n{thoughts}\n{THINK_END}"] if thoughts else []
    parts += [content] if content else []
    for name, arguments in calls:
        body = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'
        parts.append(f"{OPEN}\n{body}\n{CLOSE}")
    return "\n".join(parts)


@dataclasses.dataclass(frozen=True)
class _Parts:
    thoughts: str
    content: str
    calls: tuple[Call, ...]
    malformed: int


def _read(text: str) -> _Parts:
    thoughts, rest = split_thoughts(text)
    content, calls, malformed = read_tagged(rest, OPEN, _read_call)
    return _Parts(thoughts, content, tuple(calls), malformed)


def _read_call(text: str) -> tuple[Sequence[Call], str]:
    """Returns the call behind an opening tag, and what follows it. ValueError if there is none."""
    body, rest = read_json(text.lstrip())
    between, closed, rest = rest.partition(CLOSE)
    if between.strip() or not closed:
        raise ValueError("not closed")
    match body:
        case {"name": str(name), "arguments": dict(arguments)} if len(body) == 2:
            return [Call(name, arguments)], rest
    raise ValueError("no call")
