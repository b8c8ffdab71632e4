"""A step of a world whose agent has two tools: a shell command, and ending the episode."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

from ale_jax.agent.tools import ToolCallError, bash, finish, parse_tool_call, render_tool_call
from ale_jax.sandbox.api import ExecResult
from ale_jax.worlds.api import Step

END = "END_OF_SCRIPT"
MAX_PART_CHARS = 12_000  # of a script in a command: a reply may have MAX_REPLY_CHARS


def play(
    reply: str, run: Callable[[str], tuple[str, bool]], finish: Callable[[str], float]
) -> Step:
    """Plays the tool call in `reply`, the policy's raw text. Only the end is rewarded.

    run: runs a command, and returns what the policy sees of it and whether it failed. finish: ends
    the episode with the agent's answer, and returns its reward.
    """
    try:
        call = parse_tool_call(reply)
    except ToolCallError as error:
        return Step(f"error: {error}", malformed=True, failed=True)
    if call.name == "finish":
        return Step(reward=finish(call.arguments["answer"]), done=True)
    seen, failed = run(call.arguments["command"])
    return Step(seen, failed=failed)


def script_replies(script: bytes, path: str) -> tuple[str, ...]:
    """Returns the replies of an agent that writes a script of any length to `path`, runs it, and
    finishes."""
    commands = [*_writing(script, path), f"bash {path} < /dev/null"]
    return tuple(render_tool_call(call) for call in (*map(bash, commands), finish()))


def _writing(script: bytes, path: str) -> Iterator[str]:
    text = script.decode(errors="replace")
    is_plain = text.encode() == script and text.endswith("\n") and f"\n{END}\n" not in text
    if is_plain and len(text) <= MAX_PART_CHARS:  # readable, since it may be imitated
        yield f"cat > {path} <<'{END}'\n{text}{END}"
        return
    encoded = base64.b64encode(script).decode()
    for start in range(0, len(encoded), MAX_PART_CHARS):
        yield f"printf %s {encoded[start : start + MAX_PART_CHARS]} >> {path}.base64"
    yield f"base64 -d {path}.base64 > {path}"


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
