"""What happens in a session. A stored event is one line of the session's log."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from ale_jax.agent.assistant.clipping import encodable_json
from ale_jax.agent.assistant.messages import AssistantCall, Usage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a session. agent: the id of the call that began the sub-agent
    whose event it is; empty: the main agent. at: seconds since 1970."""

    kind: ClassVar[str] = ""
    stored: ClassVar[bool] = True
    agent: str = ""
    at: float = dataclasses.field(default_factory=time.time)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started(Event):
    """An agent exists. tools: as the endpoint is told of them."""

    kind: ClassVar[str] = "started"
    session: str
    cwd: str
    model: str
    mode: str
    system_prompt: str
    tools: tuple[dict[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(Event):
    """A user's message; a sub-agent's is its task."""

    kind: ClassVar[str] = "asked"
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written(Event):
    """A piece of a reply in progress. part: "text" or "thought"."""

    kind: ClassVar[str] = "written"
    stored: ClassVar[bool] = False
    part: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replied(Event):
    """A call of the model. for_summary: it was asked for a summary, which is no message."""

    kind: ClassVar[str] = "replied"
    content: str
    reasoning: str
    calls: tuple[AssistantCall, ...]
    stop: str
    usage: Usage | None
    for_summary: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallStarted(Event):
    """A call of a tool begins. arguments: those that were parsed; None if they are no JSON
    object."""

    kind: ClassVar[str] = "call_started"
    stored: ClassVar[bool] = False
    call: AssistantCall
    arguments: dict[str, Any] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallEnded(Event):
    """A call of a tool has ended. output: as the model reads it. whole: file that holds all of it,
    if it was long."""

    kind: ClassVar[str] = "call_ended"
    call_id: str
    name: str
    output: str
    is_error: bool = False
    refused: bool = False
    whole: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputsMoved(Event):
    """The model reads references instead of these outputs from now on. files: call's id -> path."""

    kind: ClassVar[str] = "outputs_moved"
    files: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compacted(Event):
    """The summary takes the place of all messages but the system's."""

    kind: ClassVar[str] = "compacted"
    summary: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """A request was worked on. reason: "finished", "refused" (all calls of tools were), "length",
    "max_turns", "cancelled" or "failed". detail: why it did not finish. answer: the final one."""

    kind: ClassVar[str] = "ended"
    reason: str
    answer: str = ""
    detail: str = ""
    turns: int = 0
    seconds: float = 0.0


KINDS: Mapping[str, type[Event]] = {each.kind: each for each in Event.__subclasses__()}

Tell = Callable[[Event], Awaitable[None]]


def to_json(event: Event) -> dict[str, Any]:
    """Returns an event as it is stored. Lone surrogates are replaced, so that it can be encoded."""
    return {"event": event.kind, **encodable_json(dataclasses.asdict(event))}


def from_json(record: Mapping[str, Any]) -> Event:
    """Raises KeyError, TypeError or ValueError for what is no stored event."""
    values = dict(record)
    made = KINDS[values.pop("event")]
    fields = made.__dataclass_fields__
    for name, value in values.items():
        expected = JSON_FORMS[str(fields[name].type)]
        if not isinstance(value, expected):
            raise TypeError(f"{name} {value!r:.80}")
    if "calls" in values:
        values["calls"] = tuple(AssistantCall(**call) for call in values["calls"])
    if values.get("usage") is not None:
        values["usage"] = Usage(**values["usage"])
    if "tools" in values:
        values["tools"] = tuple(values["tools"])
    return made(**values)


# By the annotations of the fields above.
JSON_FORMS: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "Usage | None": (dict, type(None)),
    "dict[str, str]": dict,
    "tuple[AssistantCall, ...]": (list, tuple),
    "tuple[dict[str, Any], ...]": (list, tuple),
}
