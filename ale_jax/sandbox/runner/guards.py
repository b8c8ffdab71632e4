"""Limits of all the agent's processes together, for where no control group has them.

They are enforced by polling, so processes can exceed them for a moment. Therefore each process also
has a hard limit (RLIMIT_AS), and system calls that hold memory without a process (HOARDS in
rights.py) are forbidden.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping

from . import kernel
from .loop import Loop
from .processes import Agent
from .usage import Sockets
from .world import MAX_TERMINALS

BUSY_S, IDLE_S = 0.05, 0.5
# Fields of /proc/PID/status. Other memory is not counted: the kernel can drop pages of files, and
# tmpfs has its own limit. gVisor has only the sum.
COUNTED, SUM, THREADS = (b"RssAnon:", b"RssShmem:"), b"VmRSS:", b"Threads:"
FIELDS = (*COUNTED, SUM, THREADS)


async def guard(loop: Loop, agent: Agent, limit: int, is_busy: Callable[[], bool]) -> None:
    """Kills the largest process whenever all processes together use more than `limit` bytes, as the
    kernel would, and all of them if their sockets do, or if they are too many, where the kernel
    (gVisor) does not count them. is_busy: whether a command is running; if so, this polls more
    often."""
    sockets = Sockets() if Sockets.are_listed() else None
    while True:
        states = {pid: _fields(pid) for pid in agent.others()}
        if sum(fields.get(THREADS, 0) for fields in states.values()) > agent.pids:
            agent.kill()
            continue
        sizes = {pid: _resident(fields) for pid, fields in states.items()}
        buffered = sockets.memory() if sockets else 0
        while sum(sizes.values()) + buffered > limit and sizes:
            if buffered > limit // 2:
                agent.kill()
                break
            largest = max(sizes, key=sizes.__getitem__)
            del sizes[largest]
            with contextlib.suppress(ProcessLookupError):
                os.kill(largest, signal.SIGKILL)
        await loop.sleep(BUSY_S if is_busy() else IDLE_S)


def _fields(pid: int) -> dict[bytes, int]:
    """FIELDS of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        lines = kernel.read(f"{pid}/status").splitlines()
        words = (line.split() for line in lines if line.startswith(FIELDS))
        return {name: int(value) for name, value, *_ in words}
    return {}


def _resident(fields: Mapping[bytes, int]) -> int:
    """Bytes of memory that a process uses."""
    names = COUNTED if COUNTED[0] in fields else (SUM,)
    return sum(fields.get(name, 0) for name in names) << 10


async def bound_terminals(loop: Loop, agent: Agent, is_busy: Callable[[], bool]) -> None:
    """Kills all processes of the agent when they hold more than MAX_TERMINALS. Only for where the
    mount of /dev/pts, which is not this process's own, has no such limit."""
    while True:
        if len(os.listdir("/dev/pts")) > MAX_TERMINALS:
            agent.kill()
        await loop.sleep(BUSY_S if is_busy() else IDLE_S)
