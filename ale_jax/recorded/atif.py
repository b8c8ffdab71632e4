"""Conversations in the Agent Trajectory Interchange Format (harbor's), as other agents write it.

A step of the agent is a reply with its results. It is context only if it was copied from another
trajectory (`is_copied_context`), if no model was called for it (`llm_call_count` 0), or if
`extra.weight` is 0. What `extra` has besides is ours (`recorded.export`). Trajectories of
sub-agents are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ale_jax.recorded.conversation import ASSISTANT, TOOL, Conversation
from ale_jax.recorded.messages import CALL_ID, EPISODE, of_messages

# Of our own agent's steps: what they say under `extra` when the history before them is replaced.
REWRITTEN = ("for_summary", "replaces")


def of_atif(record: Mapping[str, Any]) -> Conversation:
    """Reads `steps`, and what `agent.tool_definitions` and `extra` say, up to where the agent has
    rewritten its history.

    ValueError, which begins with the field, for what is missing or wrong.
    """
    steps = record.get("steps")
    if not isinstance(steps, list) or not steps:
        raise ValueError(f"steps: {steps!r:.80} is no list of steps")
    messages: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        field = f"steps.{number}"
        if any(_extra(_object(step, field), field).get(name) for name in REWRITTEN):
            break
        messages += _of_step(step, field)
    agent = _object(record.get("agent") or {}, "agent")
    extra = _extra(record, "trajectory")
    told = {"messages": messages, "tools": agent.get("tool_definitions") or []}
    return of_messages({**told, **{name: extra.get(name) for name in ("reward", EPISODE)}})


def _of_step(step: Mapping[str, Any], field: str) -> Iterator[dict[str, Any]]:
    """Yields a step's message, and the results of its calls."""
    source, text = step.get("source"), step.get("message")
    if source not in ("system", "user", "agent"):
        raise ValueError(f"{field}.source: {source!r:.80} is none of system, user, agent")
    if not isinstance(text, str | list):
        raise ValueError(f"{field}.message: {text!r:.80} is no text")
    if source != "agent":
        yield {"role": source, "content": text}
        return
    calls = _list(step, "tool_calls", field)
    is_context = step.get("is_copied_context") or step.get("llm_call_count") == 0
    extra = _extra(step, field)
    yield {
        "role": ASSISTANT,
        "content": text,
        "reasoning_content": step.get("reasoning_content"),
        "tool_calls": [_of_call(each, f"{field}.tool_calls") for each in calls] or None,
        "weight": 0 if is_context else extra.get("weight"),
        "is_error": extra.get("is_error"),
    }
    observed = _object(step.get("observation") or {}, f"{field}.observation")
    for result in _list(observed, "results", f"{field}.observation"):
        yield _of_result(result, f"{field}.observation.results")


def _of_call(call: Any, field: str) -> dict[str, Any]:
    told = _object(call, field)
    name, arguments = told.get("function_name"), told.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError(f"{field}: {call!r:.80} has no function_name or no arguments")
    written = _extra(told, field).get("arguments")
    text = written if isinstance(written, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": told.get("tool_call_id"), "function": {"name": name, "arguments": text}}


def _of_result(result: Any, field: str) -> dict[str, Any]:
    """A result without a call is told by the user, unless `extra.role` says that it is a tool's, as
    those of calls within a text."""
    told = _object(result, field)
    extra, content = _extra(told, field), told.get("content")
    answers = told.get("source_call_id")
    if answers is None and extra.get("role") != TOOL:
        return {"role": "user", "content": "" if content is None else content}
    return {
        "role": TOOL,
        "tool_call_id": extra.get("tool_call_id", CALL_ID) if answers is None else answers,
        "content": "" if content is None else content,
        "is_error": extra.get("is_error"),
    }


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{field}: {value!r:.80} is no object")
    return value


def _extra(value: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    return _object(value.get("extra") or {}, f"{field}.extra")


def _list(value: Mapping[str, Any], name: str, field: str) -> list[Any]:
    found = value.get(name) or []
    if not isinstance(found, list):
        raise ValueError(f"{field}.{name}: {found!r:.80} is no list")
    return found
