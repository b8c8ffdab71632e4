"""Sandboxes as seen from the host: their processes, and how to kill them like an accident would."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import docker

from ale_jax.sandbox import cgroups
from ale_jax.sandbox.async_sandbox import PROGRAM, AsyncSandbox

STARTERS = (
    "bwrap",
    "docker-init",
    "sh",
    "setpriv",
    "unshare",
)  # have the runner's program as an argument


def host_pids(sandbox: AsyncSandbox) -> list[int]:
    """The host's pids of its processes."""
    machine = sandbox._machine
    if hasattr(machine, "_container"):
        return [int(row[1]) for row in machine._api.top(machine._container)["Processes"]]
    return [machine._process.pid, *descendants(machine._process.pid)]


def runner_pid(sandbox: AsyncSandbox) -> int:
    """The pid of the runner itself, not of a process that has only started it."""
    for pid in host_pids(sandbox):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if PROGRAM in words and Path(words[0]).name not in STARTERS:
            return pid
    raise AssertionError("no runner")


def kill_machine(sandbox: AsyncSandbox) -> None:
    machine = sandbox._machine
    if hasattr(machine, "_container"):
        machine._api.kill(machine._container)
    else:
        machine._process.kill()


def kill_runner(sandbox: AsyncSandbox) -> None:
    os.kill(runner_pid(sandbox), signal.SIGKILL)


def freeze_runner(sandbox: AsyncSandbox) -> None:
    os.kill(runner_pid(sandbox), signal.SIGSTOP)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def descendants(pid: int) -> list[int]:
    """All descendants of a process, through all its threads; none if it has ended."""
    mine, ended = [], (FileNotFoundError, ProcessLookupError)
    with contextlib.suppress(*ended):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(*ended):
                words = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                mine += [int(word) for word in words]
    return mine + [below for each in mine for below in descendants(each)]


def leftovers(runtime: str, owner: str) -> list:
    """What exists of an owner's sandboxes: containers, or control groups."""
    if runtime == "docker":
        ours = {"label": f"ale.owner={owner}"}
        return [each["Id"] for each in docker.from_env().api.containers(all=True, filters=ours)]
    parents = set(cgroups.find().parents.values())
    return [found for parent in parents for found in parent.glob(f"{cgroups.PREFIX}{owner}-*")]
