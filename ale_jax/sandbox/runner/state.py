"""What a reset must bring back, which is compared with how it was at the start."""

import contextlib
import os
import resource
import select
import stat
from collections.abc import Callable, Collection, Iterator

from . import files, kernel

# Sysctls that the owner of an IPC namespace may write.
SYSCTLS = ("sem", "shmmax", "shmall", "shmmni", "shm_rmid_forced", "msgmax", "msgmnb", "msgmni")
LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


class SystemState(dict):
    """What a reset must bring back to its start, described by subject.

    It is compared, since a change that went unnoticed would falsify every later episode.
    """

    def differences(self, now: "SystemState") -> str:
        """What is different now, as text; empty if nothing is."""
        return "; ".join(
            f"{subject}: {_changes(then, now[subject])}"
            for subject, then in self.items()
            if now[subject] != then
        )


def _changes(then: object, now: object) -> str:
    """Both, without what is equal in them."""
    if isinstance(then, dict) and isinstance(now, dict):
        names = [name for name in then | now if then.get(name) != now.get(name)]
        return ", ".join(f"{name}: {_changes(then.get(name), now.get(name))}" for name in names)
    return f"{now}, not {then}"


class Mounts:
    """The mounts of the namespace in which this process is when it makes this: the agent's own, or
    the one that each world starts with. They are read again only if the kernel reports a change.

    known: paths of mounts that a reset empties or replaces.
    lines: place, options and file system of each, without the source, which may be deleted later (a
        socket).
    places: the paths of all of them.
    kept: the places at which the uppermost mount may be written to and is not known, but for those
        of processes.
    """

    def __init__(self, known: Collection[str]):
        self._known = {*known}
        self._file = os.open("self/mountinfo", os.O_RDONLY, dir_fd=kernel.proc())
        self._changes = select.poll()
        self._changes.register(self._file, select.POLLERR | select.POLLPRI)
        self._read()

    def look(self) -> None:
        """Brings `lines` and `kept` up to date."""
        if self._changes.poll(0):
            self._read()

    def within(self, directory: str) -> set[str]:
        """The names of the entries of `directory` that are mount points."""
        self.look()
        return self._within.get(directory, set())

    def _read(self) -> None:
        os.lseek(self._file, 0, os.SEEK_SET)
        with open(self._file, "rb", closefd=False) as file:
            lines = file.read().decode().splitlines()
        self.lines = [" ".join(line.split(" ")[4:]) for line in lines]
        self._within: dict[str, set[str]] = {}
        writable = {}
        for line in self.lines:
            path, options, *rest = line.split(" ")
            parent, name = os.path.split(path)
            self._within.setdefault(parent, set()).add(name)
            kind = rest[rest.index("-") + 1]
            writable[path] = options.startswith("rw") and kind != "proc"
        self.places = set(writable)
        self.kept = {path for path, may in writable.items() if may} - self._known


def describe(parts: Collection[str], others: Callable[[], set[int]], mounts: Mounts) -> SystemState:
    """parts: directories, which must be empty. others: the pids of the agent's processes."""
    mounts.look()
    return SystemState(
        limits={name: resource.getrlimit(number) for name, number in LIMITS.items()},
        scheduling=(os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))),
        processes=sorted(others()),
        sysctls={name: _sysctl(name) for name in SYSCTLS},
        mounts=mounts.lines,
        files={path: _use(path) for path in parts},
        written={path: _tree(path, mounts.places) for path in mounts.kept},
    )


def _sysctl(name: str) -> bytes | None:
    """None if this kernel (gVisor) does not have it."""
    try:
        return kernel.read(f"sys/kernel/{name}")
    except FileNotFoundError:
        return None


def _use(path: str) -> tuple[object, ...]:
    """Owner, mode and attributes of a directory, and what is used of the file system below it."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status, disk = os.fstat(directory), os.fstatvfs(directory)
        used = (disk.f_blocks - disk.f_bfree, disk.f_files - disk.f_ffree)
        attributes = files.attributes(directory)
        return (status.st_uid, status.st_gid, status.st_mode, attributes, *used)
    finally:
        os.close(directory)


def _tree(path: str, mounted: Collection[str]) -> dict[str, tuple[object, ...]]:
    """Everything at and below `path`, of which nobody needs to change anything, without what is
    `mounted` below it."""
    return {name: _entry(status) for name, status in _walk(path, mounted)}


def _entry(status: os.stat_result) -> tuple[object, ...]:
    """The time of the last change is new after any change of times, attributes or content, and
    nobody can set it. Other times change by themselves, when a terminal is read."""
    return (
        *(status.st_mode, status.st_uid, status.st_gid, status.st_rdev, status.st_size),
        status.st_ctime_ns,
    )


def _walk(path: str, but: Collection[str]) -> Iterator[tuple[str, os.stat_result]]:
    status = os.lstat(path)
    yield path, status
    if stat.S_ISDIR(status.st_mode):
        with contextlib.suppress(PermissionError):  # then nobody can see what is in it
            for name in sorted(os.listdir(path)):
                if (inner := f"{path}/{name}") not in but:
                    yield from _walk(inner, but)
