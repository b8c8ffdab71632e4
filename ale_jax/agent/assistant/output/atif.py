"""The Agent Trajectory Interchange Format, version 1.8 (harbor's). Readers refuse unknown keys, so
that what is ours stands under `extra`."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

VERSION = "ATIF-v1.8"


@dataclasses.dataclass(frozen=True)
class AtifToolCall:
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SubagentRef:
    """To one of the root's `subagent_trajectories`."""

    trajectory_id: str


@dataclasses.dataclass(frozen=True)
class ObservationResult:
    """source_call_id: of a call in the same step."""

    source_call_id: str
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
    """step_id: from 1. timestamp: ISO 8601. llm_call_count: 1 for an agent's, for each call of the
    model is a step."""

    step_id: int
    timestamp: str
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
        assert {result.source_call_id for result in results} <= calls


@dataclasses.dataclass(frozen=True)
class AtifAgent:
    name: str
    version: str
    model_name: str
    tool_definitions: tuple[dict[str, Any], ...]


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
    final_metrics: FinalMetrics
    extra: dict[str, Any] | None = None
    subagent_trajectories: tuple[Trajectory, ...] | None = None
    schema_version: str = VERSION

    def to_json(self) -> dict[str, Any]:
        """Without what there is not."""
        return _json_of(self)


def _json_of(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _json_of(each) for name, each in fields.items() if each is not None}
    return [_json_of(each) for each in value] if isinstance(value, tuple) else value
