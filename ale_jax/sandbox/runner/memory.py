"""Holds the agent's processes together to a limit of memory, where no control group can.

It looks, so it can be outrun for a moment; each process by itself has a hard limit (RLIMIT_AS), and
what holds memory without a process (HOARDS in seccomp.py) is forbidden meanwhile.
"""

import contextlib
import os
import signal
from collections.abc import Callable

from .loop import Loop
from .processes import living

BUSY_S, IDLE_S = 0.05, 0.5
# Of /proc/PID/status. Pages of files can be dropped by the kernel; those of tmpfs have their limit.
COUNTED = (b"RssAnon:", b"RssShmem:")


async def guard(loop: Loop, limit: int, is_busy: Callable[[], bool]) -> None:
    """Kills the largest process whenever all together hold more than `limit` bytes, as the kernel
    would. is_busy: whether a command runs, which is watched more closely."""
    while True:
        sizes = resident()
        while sum(sizes.values()) > limit:
            largest = max(sizes, key=sizes.__getitem__)
            del sizes[largest]
            with contextlib.suppress(ProcessLookupError):
                os.kill(largest, signal.SIGKILL)
        await loop.sleep(BUSY_S if is_busy() else IDLE_S)


def resident() -> dict[int, int]:
    """Bytes that each process of the agent's holds in memory, by its number."""
    sizes = {}
    for pid in living() - {1, os.getpid()}:
        # It may end meanwhile; one that has ended holds nothing.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
            sizes[pid] = sum(
                int(line.split()[1]) << 10 for line in file if line.startswith(COUNTED)
            )
    return sizes
