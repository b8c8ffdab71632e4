"""Forks, system calls that Python has no function for, and the processes that the runner sees in
/proc."""

import contextlib
import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments) -> int:
    """Calls a function of the C library. OSError if it returns -1."""
    result = getattr(_libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def fork(begin: Callable[[], None]) -> int:
    """Forks a process that calls `begin`, and returns its pid. If `begin` returns or raises, that
    process ends: it must never go on as a second one with the connection to the host."""
    pid = -1
    try:
        pid = os.fork()
        if not pid:
            begin()
    finally:
        if not pid:
            os._exit(127)
    return pid


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
    # A child inherits `proc` together with the position in the list, so that two processes that
    # listed it at once would each miss some. A description of its own has its own position.
    own = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc())
    try:
        return {int(name) for name in os.listdir(own) if name.isdecimal()}
    finally:
        os.close(own)


def state(pid: int) -> bytes:
    """The letter that /proc shows for the state of a process; b"" if there is none."""
    with contextlib.suppress(OSError):
        return _stat(pid)[0]
    return b""


def threads(pids: Iterable[int]) -> int:
    """The number of threads of all these processes; that of a zombie is one."""
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            count += max(1, int(_stat(pid)[17]))
    return count


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name: the state, the parent, ..."""
    return read(f"{pid}/stat").rpartition(b")")[2].split()


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
            state, parent, *rest = _stat(pid)
            if state != b"Z":
                parents[pid] = int(parent)
                births[pid] = int(rest[17]), pid
    return parents, births


def ancestors(pid: int, parents: Mapping[int, int]) -> set[int]:
    line = set()
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.add(pid)
    return line
