"""A step of an environment whose agent has two tools: a shell command, and ending the episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ale_jax.agent.tools import ToolCallError, parse_tool_call
from ale_jax.sandbox.api import ExecResult

# Observation, reward, terminated, truncated, info; see `play`.
Step = tuple[str, float, bool, bool, dict[str, Any]]


def play(
    action: str, run: Callable[[str], tuple[str, bool]], finish: Callable[[str], float]
) -> Step:
    """Plays the tool call in `action`, the policy's raw text.

    run: runs a command, and returns what the policy sees of it and whether it failed. finish: ends
    the episode with the agent's answer, and returns its reward.

    Returns observation, reward (0.0 until the end), terminated, truncated (never, as the caller
    sets limits) and info. info["malformed"]: there was no valid call. info["failed"]: there was no
    valid call, or its command failed.
    """
    try:
        call = parse_tool_call(action)
    except ToolCallError as error:
        return f"error: {error}", 0.0, False, False, {"malformed": True, "failed": True}
    if call.name == "finish":
        reward = finish(call.arguments["answer"])
        return "", reward, True, False, {"malformed": False, "failed": False}
    seen, failed = run(call.arguments["command"])
    return seen, 0.0, False, False, {"malformed": False, "failed": failed}


def has_failed(result: ExecResult) -> bool:
    """Whether the command ended with an error or timed out."""
    return result.timed_out or result.exit_code != 0


def observation(result: ExecResult) -> str:
    """The observation that the policy gets of a command's result."""
    notes = []
    if result.omitted_bytes:
        notes.append(f"[{result.omitted_bytes} bytes left out]")
    if result.timed_out:
        notes.append("[timed out]")
    elif result.exit_code != 0:
        notes.append(f"[exit {result.exit_code}]")
    return "\n".join([result.output.rstrip("\n") or "(no output)", *notes])
