"""A session as a trajectory in the Agent Trajectory Interchange Format, version 1.8 (harbor's).

Readers refuse unknown keys, so that what is ours stands under `extra`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from ale_jax.agent.assistant.events import (
    Asked,
    CallEnded,
    Compacted,
    Ended,
    Event,
    Replied,
    Started,
)
from ale_jax.agent.assistant.messages import Usage
from ale_jax.agent.assistant.stream_json import input_of
from ale_jax.files import write_json

VERSION = "ATIF-v1.8"


@dataclasses.dataclass(frozen=True)
class AtifToolCall:
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class SubagentRef:
    """To one of the root's `subagent_trajectories`."""

    trajectory_id: str


@dataclasses.dataclass(frozen=True)
class ObservationResult:
    """The result of a call. source_call_id: of a call in the same step, if it has an id."""

    source_call_id: str | None
    content: str
    subagent_trajectory_ref: tuple[SubagentRef, ...] | None = None
    extra: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Observation:
    results: tuple[ObservationResult, ...]


@dataclasses.dataclass(frozen=True)
class Metrics:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclasses.dataclass(frozen=True)
class Step:
    """A message, or a call of the model with its tools' results. step_id: from 1. timestamp: ISO
    8601. llm_call_count: 1 for an agent's, for each call of the model is a step."""

    step_id: int
    timestamp: str | None
    source: Literal["system", "user", "agent"]
    message: str
    reasoning_content: str | None = None
    tool_calls: tuple[AtifToolCall, ...] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    llm_call_count: int | None = None
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        assert self.step_id >= 1
        of_agents = (self.reasoning_content, self.tool_calls, self.metrics)
        assert self.source == "agent" or of_agents == (None, None, None)
        results = self.observation.results if self.observation else ()
        calls = {call.tool_call_id for call in self.tool_calls or ()}
        assert {result.source_call_id for result in results} - {None} <= calls


@dataclasses.dataclass(frozen=True)
class AtifAgent:
    name: str
    version: str
    model_name: str | None
    tool_definitions: tuple[dict[str, Any], ...] | None


@dataclasses.dataclass(frozen=True)
class FinalMetrics:
    total_prompt_tokens: int
    total_completion_tokens: int
    total_cached_tokens: int
    total_steps: int


@dataclasses.dataclass(frozen=True)
class Trajectory:
    session_id: str
    trajectory_id: str
    agent: AtifAgent
    steps: tuple[Step, ...]
    final_metrics: FinalMetrics | None
    extra: dict[str, Any] | None = None
    subagent_trajectories: tuple[Trajectory, ...] | None = None
    schema_version: str = VERSION

    def to_json(self) -> dict[str, Any]:
        """Returns the trajectory as JSON, without what there is not."""
        return _json_of(self)


def _json_of(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _json_of(each) for name, each in fields.items() if each is not None}
    return [_json_of(each) for each in value] if isinstance(value, tuple) else value


def export(events: Sequence[Event], path: Path) -> None:
    """Writes the trajectory of a session's events. ValueError if the session has not begun."""
    write_json(path, trajectory_of(events).to_json())


def trajectory_of(events: Sequence[Event]) -> Trajectory:
    """Returns the main agent's trajectory, with those of its sub-agents. ValueError if the main
    agent has no event."""
    by_agent: dict[str, list[Event]] = {}
    for event in events:
        by_agent.setdefault(event.agent, []).append(event)
    main = by_agent.pop("", [])
    if not any(isinstance(event, Started) for event in main):
        raise ValueError("the session has not begun; there is nothing to export")
    ended = [event for event in main if isinstance(event, Ended)]
    return dataclasses.replace(
        _trajectory("", main, by_agent.keys()),
        subagent_trajectories=tuple(_trajectory(*each, ()) for each in by_agent.items()) or None,
        extra={"ended": ended[-1].reason, "answer": ended[-1].answer} if ended else None,
    )


def _trajectory(name: str, events: Sequence[Event], children: Any) -> Trajectory:
    started = next(event for event in events if isinstance(event, Started))
    steps = _steps(events, children)
    usages = [each.usage or Usage(0, 0) for each in events if isinstance(each, Replied)]
    total = sum(usages, Usage(0, 0))
    return Trajectory(
        session_id=started.session,
        trajectory_id=f"{started.session}/{name}" if name else started.session,
        agent=AtifAgent("ale-agent", version("ale-jax"), started.model, started.tools),
        steps=steps,
        final_metrics=FinalMetrics(total.prompt, total.completion, total.cached, len(steps)),
    )


def _steps(events: Sequence[Event], children: Any) -> tuple[Step, ...]:
    """One for each message of the user's and each call of the model."""
    session = next(event.session for event in events if isinstance(event, Started))
    steps: list[Step] = []
    for index, event in enumerate(events):
        number, at = len(steps) + 1, datetime.fromtimestamp(event.at, UTC).isoformat()
        match event:
            case Started():
                steps.append(Step(number, at, "system", event.system_prompt))
            case Asked():
                steps.append(Step(number, at, "user", event.text))
            case Replied():
                results = _results(event, events[index + 1 :])
                refs = {id: f"{session}/{id}" for id in results if id in children}
                steps.append(_agent_step(number, at, event, results, refs))
            case Compacted():
                extra = {"replaces": "all earlier steps but the first"}
                steps.append(Step(number, at, "system", event.summary, extra=extra))
    return tuple(steps)


def _results(reply: Replied, later: Sequence[Event]) -> dict[str, CallEnded]:
    """Of the reply's calls, by their ids, which are unique in a conversation."""
    ids = {call.id for call in reply.calls}
    ended = (event for event in later if isinstance(event, CallEnded))
    return {event.call_id: event for event in ended if event.call_id in ids}


def _agent_step(
    number: int,
    at: str,
    event: Replied,
    results: Mapping[str, CallEnded],
    refs: Mapping[str, str],
) -> Step:
    calls = tuple(AtifToolCall(call.id, call.name, input_of(call)) for call in event.calls)
    observed = tuple(_observed(each, refs.get(each.call_id)) for each in results.values())
    usage = event.usage
    return Step(
        step_id=number,
        timestamp=at,
        source="agent",
        message=event.content,
        reasoning_content=event.reasoning or None,
        tool_calls=calls or None,
        observation=Observation(observed) if observed else None,
        metrics=Metrics(usage.prompt, usage.completion, usage.cached) if usage else None,
        llm_call_count=1,
        extra={"for_summary": True} if event.for_summary else None,
    )


def _observed(result: CallEnded, ref: str | None) -> ObservationResult:
    extra: dict[str, Any] = {"is_error": True} if result.is_error else {}
    if result.refused:
        extra["refused"] = True
    return ObservationResult(
        source_call_id=result.call_id,
        content=result.output,
        subagent_trajectory_ref=(SubagentRef(ref),) if ref else None,
        extra=extra or None,
    )
