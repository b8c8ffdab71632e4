"""Lists everything that sandboxes may leave behind on a host, by name.

Things of another living process are left out, because others may use the host as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

import docker
from docker.errors import DockerException, NotFound

from ale_jax.sandbox.async_sandbox import PROGRAM
from ale_jax.sandbox.cgroups import Owner

SETTLE_S = 20.0
CGROUPS = Path("/sys/fs/cgroup")
HOLDERS = ("bwrap", "containerd-shim")
OWNER = re.compile(r"[0-9a-f-]{36}(?:\.\d+){3}")

# Kind of thing -> the names of those that exist.
Inventory = dict[str, frozenset[str]]
# The same, with a text for each name that identifies its owner.
Things = dict[str, dict[str, str]]


def take() -> Inventory:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    cgroups = (each for each, _, _ in os.walk(CGROUPS) if "/ale-" in each or "/docker/" in each)
    folders = map(str, Path(tempfile.gettempdir()).glob("ale-*"))
    things = {
        "containers": _containers(),
        "volumes": _named(_volumes()),
        "processes": dict(_processes()),
        "mounts": _named(line.split()[4] for line in mounts),
        "cgroups": _named(cgroups),
        "folders": _named(folders),
    }
    clues = "\n".join(clue for named in things.values() for clue in named.values())
    return without(things, {each for each in OWNER.findall(clues) if _is_anothers(each)})


def without(things: Things, others: Set[str]) -> Inventory:
    """The things that do not belong to `others`, which are owners."""
    words = set(others)
    for clue in things["containers"].values():
        if any(owner in clue for owner in others):
            words |= {*clue.split()}  # its processes, cgroups and mounts contain its id or mount
    return {
        kind: frozenset(n for n, clue in named.items() if not any(each in clue for each in words))
        for kind, named in things.items()
    }


def left_since(before: Inventory) -> Inventory:
    """What has appeared since and remains. Things that are being removed have SETTLE_S to go."""
    deadline = time.monotonic() + SETTLE_S
    left = more(before, take())
    while any(left.values()) and time.monotonic() < deadline:
        time.sleep(0.2)
        now = take()
        left = {kind: names & now[kind] for kind, names in left.items()}
    return left


def more(before: Inventory, now: Inventory) -> Inventory:
    return {kind: names - before.get(kind, frozenset()) for kind, names in now.items()}


def _named(names: Iterable[str]) -> dict[str, str]:
    """Things of which only the names are known."""
    return {name: name for name in names}


def _containers() -> dict[str, str]:
    """The id, owner and mount of each container, by id."""
    found = {}
    with contextlib.suppress(DockerException):  # no daemon, so only bubblewrap is measured
        api = docker.from_env().api
        for each in api.containers(all=True):
            owner, mount = each["Labels"].get("ale.owner", ""), ""
            with contextlib.suppress(NotFound):  # it ended meanwhile
                layers = api.inspect_container(each["Id"])["GraphDriver"]["Data"]
                mount = layers["MergedDir"] if layers else ""  # None if it is being removed
            found[each["Id"]] = f"{each['Id']} {owner} {mount}"
    return found


def _volumes() -> list[str]:
    with contextlib.suppress(DockerException):
        return [each["Name"] for each in docker.from_env().api.volumes()["Volumes"] or []]
    return []


def _processes() -> Iterator[tuple[str, str]]:
    """Processes in sandboxes, and those that hold them: (pid, name and start time; command line and
    cgroup)."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            stat, line, cgroup = (
                (folder / name).read_text(errors="replace")
                for name in ("stat", "cmdline", "cgroup")
            )
            name = stat.partition("(")[2].rpartition(")")[0]
            if PROGRAM in line.split("\0") or name in HOLDERS:
                started = stat.rpartition(")")[2].split()[19]  # because pids are reused
                yield f"{folder.name} {name} {started}", line + cgroup


def _is_anothers(owner: str) -> bool:
    process = Owner.parse(owner)
    return process.is_here() and not process.is_dead() and process != Owner.current()
