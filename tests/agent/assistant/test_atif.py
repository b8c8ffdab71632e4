"""A session as a trajectory: a step for each call of the model, and all keys are ATIF's."""

import json

import pytest

from ale_jax.agent.assistant.atif import export, trajectory_of
from ale_jax.agent.assistant.events import (
    Asked,
    CallEnded,
    Compacted,
    Ended,
    Replied,
    Started,
)
from ale_jax.agent.assistant.messages import AssistantCall, Usage

# As harbor's models of version 1.8 name them; they refuse all others.
KEYS = {
    "trajectory": {
        *("schema_version", "session_id", "trajectory_id", "agent", "steps", "notes"),
        *("final_metrics", "continued_trajectory_ref", "extra", "subagent_trajectories"),
    },
    "step": {
        *("step_id", "timestamp", "source", "model_name", "reasoning_effort", "message"),
        *("reasoning_content", "tool_calls", "observation", "metrics", "is_copied_context"),
        *("llm_call_count", "extra"),
    },
    "result": {"source_call_id", "content", "subagent_trajectory_ref", "extra"},
    "call": {"tool_call_id", "function_name", "arguments", "extra"},
}
TOOLS = ({"type": "function", "function": {"name": "bash"}},)


def started(agent=""):
    return Started(
        agent=agent,
        at=0,
        session="s",
        cwd="/w",
        model="m",
        mode="ask",
        system_prompt="S",
        tools=TOOLS,
    )


def replied(content, calls=(), usage=None, agent="", **fields):
    return Replied(
        agent=agent,
        at=1.5,
        content=content,
        reasoning="",
        calls=calls,
        stop="stop",
        usage=usage,
        **fields,
    )


TASK, BASH = AssistantCall("c1", "task", '{"task": "T"}'), AssistantCall("c2", "bash", "not JSON")
EVENTS = [
    started(),
    Asked(at=1, text="Go."),
    replied("I do.", (TASK, BASH), Usage(10, 5, 4)),
    started("c1"),
    Asked(agent="c1", text="T"),
    replied("Yes.", (), Usage(3, 1), "c1"),
    Ended(agent="c1", reason="finished", answer="Yes."),
    CallEnded(call_id="c1", name="task", output="Yes."),
    CallEnded(call_id="c2", name="bash", output="refused", is_error=True, refused=True),
    replied("A summary.", usage=Usage(20, 2), for_summary=True),
    Compacted(summary="A summary."),
    replied("Done.", usage=Usage(8, 1)),
    Ended(reason="finished", answer="Done."),
]


def test_each_call_of_the_model_is_a_step_with_its_results():
    told = trajectory_of(EVENTS).to_json()
    assert told["schema_version"] == "ATIF-v1.8" and told["agent"]["model_name"] == "m"
    assert told["agent"]["tool_definitions"] == list(TOOLS)
    steps = told["steps"]
    sources = ["system", "user", "agent", "agent", "system", "agent"]
    assert [(s["step_id"], s["source"]) for s in steps] == [*enumerate(sources, 1)]
    assert steps[2]["timestamp"] == "1970-01-01T00:00:01.500000+00:00"
    assert steps[2]["metrics"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 4,
    }
    assert [c["arguments"] for c in steps[2]["tool_calls"]] == [
        {"task": "T"},
        {"invalid": "not JSON"},
    ]
    first, second = steps[2]["observation"]["results"]
    assert first == {
        "source_call_id": "c1",
        "content": "Yes.",
        "subagent_trajectory_ref": [{"trajectory_id": "s/c1"}],
    }
    assert second["extra"] == {"is_error": True, "refused": True}
    assert steps[3]["extra"] == {"for_summary": True}
    assert told["final_metrics"] == {
        "total_prompt_tokens": 38,
        "total_completion_tokens": 8,
        "total_cached_tokens": 4,
        "total_steps": 6,
    }
    (sub,) = told["subagent_trajectories"]
    assert sub["trajectory_id"] == "s/c1" and [s["message"] for s in sub["steps"]] == [
        "S",
        "T",
        "Yes.",
    ]


def test_only_keys_of_the_format_are_written(tmp_path):
    export(EVENTS, tmp_path / "t.json")
    told = json.loads((tmp_path / "t.json").read_text())
    for trajectory in (told, *told["subagent_trajectories"]):
        assert trajectory.keys() <= KEYS["trajectory"]
        for step in trajectory["steps"]:
            assert step.keys() <= KEYS["step"]
            for call in step.get("tool_calls", ()):
                assert call.keys() <= KEYS["call"]
            for result in step.get("observation", {}).get("results", ()):
                assert result.keys() <= KEYS["result"]


def test_a_session_that_has_not_begun_is_no_trajectory(tmp_path):
    with pytest.raises(ValueError, match="not begun"):
        export([], tmp_path / "t.json")
