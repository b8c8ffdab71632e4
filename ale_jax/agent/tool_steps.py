"""A step of a world whose agent has two tools: a shell command, and ending the episode."""

from __future__ import annotations

import base64
import posixpath
import shlex
from collections.abc import Callable, Iterator

from ale_jax.agent.tools import ToolCall, ToolCallError, parse_tool_call
from ale_jax.sandbox.api import ExecResult
from ale_jax.worlds.api import Step

END = "END_OF_SCRIPT"
MAX_PART_CHARS = 12_000  # of a file in a command: a reply may have MAX_REPLY_CHARS


def play(
    reply: str, run: Callable[[str], tuple[str, bool]], finish: Callable[[str], float]
) -> Step:
    """Plays the tool call in `reply`, the policy's raw text. Only the end is rewarded.

    run: runs a command, and returns what the policy sees of it and whether it failed. finish: ends
    the episode with the agent's answer, and returns its reward.
    """
    call = called(reply)
    if isinstance(call, Step):
        return call
    if call.name == "finish":
        return Step(reward=finish(call.arguments["answer"]), done=True)
    seen, failed = run(call.arguments["command"])
    return Step(seen, failed=failed)


def called(reply: str) -> ToolCall | Step:
    """Returns the tool call in a reply; where there is none, the step that says so."""
    try:
        return parse_tool_call(reply)
    except ToolCallError as error:
        return Step(f"error: {error}", malformed=True, failed=True)


def file_commands(content: bytes, path: str, is_executable: bool = False) -> Iterator[str]:
    """Yields commands that write a file of any size, and its directory."""
    text, where = content.decode(errors="replace"), shlex.quote(path)
    if folder := posixpath.dirname(path):
        yield f"mkdir -p {shlex.quote(folder)}"
    is_whole = text.encode() == content and text.endswith("\n") and "\0" not in text
    is_plain = is_whole and f"\n{END}\n" not in f"\n{text}"
    if is_plain and len(text) <= MAX_PART_CHARS:  # readable, since it may be imitated
        yield f"cat > {where} <<'{END}'\n{text}{END}"
    else:
        encoded = base64.b64encode(content).decode()
        for start in range(0, max(len(encoded), 1), MAX_PART_CHARS):  # also of an empty file
            part = encoded[start : start + MAX_PART_CHARS]
            yield f"printf %s '{part}' >> {where}.base64"
        yield f"base64 -d {where}.base64 > {where}; rm {where}.base64"
    if is_executable:
        yield f"chmod +x {where}"


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
