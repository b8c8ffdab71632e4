"""System calls that Python has no function for, and the processes that the runner sees in /proc."""

import contextlib
import ctypes
import functools
import os
import time
from collections.abc import Mapping

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments) -> int:
    """Calls a function of the C library. OSError if it returns -1."""
    result = getattr(_libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


@functools.cache
def proc() -> int:
    """The runner's own /proc. It stays open, because another one is mounted over it for the agent,
    in which the runner does not exist."""
    return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)


def read(path: str) -> bytes:
    """The content of a file in `proc`. path: relative to it."""
    with open(os.open(path, os.O_RDONLY, dir_fd=proc()), "rb") as file:
        return file.read()


def living() -> set[int]:
    """The pids of all processes, including zombies."""
    return {int(name) for name in os.listdir(proc()) if name.isdecimal()}


def state(pid: int) -> bytes:
    """The letter that /proc shows for the state of a process; b"" if there is none."""
    with contextlib.suppress(OSError):
        return read(f"{pid}/stat").rpartition(b")")[2].split()[0]
    return b""


Birth = tuple[int, int]  # when a process started: clock tick since boot, pid


def now() -> Birth:
    """Before that of every process that starts later, and not before that of any earlier one.

    Many processes start within a tick. Pids tell these apart, because the kernel counts them up.
    """
    tick = time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 10**9
    return tick, int(read("loadavg").split()[-1])


def parents_and_births() -> tuple[dict[int, int], dict[int, Birth]]:
    """The parent of each process that is not a zombie, and when it started."""
    parents, births = {}, {}
    for pid in living():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent, *rest = read(f"{pid}/stat").rpartition(b")")[2].split()
            if state != b"Z":
                parents[pid] = int(parent)
                births[pid] = int(rest[17]), pid
    return parents, births


def ancestors(pid: int, parents: Mapping[int, int]) -> set[int]:
    line = set()
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.add(pid)
    return line
