"""Judges the final state of an episode, in the process that plays it, outside the sandbox.

The agent's processes are killed first, so that nothing changes while files are read, and the
expected content is compared outside the sandbox. The agent therefore cannot forge a result.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ale_jax.envs.shell.task import Goal, Probe
from ale_jax.sandbox.api import Sandbox


def verify(goal: Goal, sandbox: Sandbox, answer: str | None) -> bool:
    """Whether the goal is reached; `answer` is None if the agent never finished.

    Raises:
      SandboxError: the sandbox failed, so there is no verdict.
    """
    if goal.answer is not None and (answer is None or answer.strip() != goal.answer):
        return False
    sandbox.kill_processes()
    if not _files_hold(goal.files, sandbox):
        return False
    return goal.probe is None or _probe_holds(goal.probe, sandbox)


def _files_hold(files: Mapping[str, bytes | None], sandbox: Sandbox) -> bool:
    gone = [path for path, content in files.items() if content is None]
    kept = {path: content for path, content in files.items() if content is not None}
    return all(_holds(sandbox, *item) for item in kept.items()) and _are_gone(sandbox, gone)


def _holds(sandbox: Sandbox, path: str, content: bytes) -> bool:
    try:
        return sandbox.read(path) == content
    except FileNotFoundError:
        return False


def _are_gone(sandbox: Sandbox, paths: Sequence[str]) -> bool:
    """Looks the names up, because a path that cannot be read, such as a directory, may still
    exist."""
    if not paths:
        return True
    result = sandbox.run(f"find {shlex.join(paths)} -maxdepth 0 2>/dev/null")
    return result.output == "" and result.exit_code == 1  # any other code: it did not look


def _probe_holds(probe: Probe, sandbox: Sandbox) -> bool:
    try:
        sandbox.write(probe.files)
    except OSError:  # the agent has removed the write permission of its own directory
        return False
    result = sandbox.run(probe.command)
    return result.exit_code == 0 and result.output.rstrip("\n") == probe.output
