"""Finds and kills the sandboxes of a process from outside, as an accident would."""

import contextlib
import os
import signal
from pathlib import Path

import docker
from docker.errors import NotFound

from ale_jax.sandbox.cgroups import Owner


def of(runtime: str, pid: int) -> list[int] | list[str]:
    """Of process `pid`: the sandboxes' bwrap processes, or ids of containers."""
    return _children(pid) if runtime == "bubblewrap" else _containers(pid)


def exists(runtime: str, sandbox: int | str) -> bool:
    if runtime == "bubblewrap":
        return process_exists(sandbox)
    with contextlib.suppress(NotFound):
        return docker.from_env().containers.get(sandbox).status == "running"
    return False


def kill_only(runtime: str, pid: int) -> None:
    """Kills the one sandbox of process `pid`."""
    (sandbox,) = of(runtime, pid)
    if runtime == "bubblewrap":
        os.kill(sandbox, signal.SIGKILL)
    else:
        docker.from_env().containers.get(sandbox).kill()


def process_exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def _containers(pid: int) -> list[str]:
    # Those of other tests may be removed meanwhile.
    labelled = {"label": "ale.owner"}
    listed = docker.from_env().containers.list(filters=labelled, ignore_removed=True)
    return [each.id for each in listed if Owner.parse(each.labels["ale.owner"]).pid == pid]
