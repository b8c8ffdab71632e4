"""Writes a session as a trajectory in ATIF."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
from ale_jax.agent.assistant.output.atif import (
    AtifAgent,
    AtifToolCall,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    SubagentRef,
    Trajectory,
)
from ale_jax.agent.assistant.output.stream_json import input_of
from ale_jax.files import write_json


def export(events: Sequence[Event], path: Path) -> None:
    """ValueError if the session has not begun."""
    write_json(path, trajectory_of(events).to_json())


def trajectory_of(events: Sequence[Event]) -> Trajectory:
    """Of the main agent, with those of its sub-agents. ValueError if there is no event of it."""
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
