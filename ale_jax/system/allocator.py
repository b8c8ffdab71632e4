"""The allocator of host memory: tcmalloc where it is installed.

On CPUs XLA takes each program's buffers from `malloc`. glibc gives such large pieces back to the
kernel when they are freed, which clears them again at the next step. tcmalloc keeps them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CHOICE = "ALE_ALLOCATOR"  # the user's: tcmalloc, or system to leave the allocator as it is
TCMALLOC, SYSTEM = "tcmalloc", "system"
LIBRARY = "libtcmalloc_minimal.so.4"
PRELOADED = "LD_PRELOAD"
# Of NVIDIA, AMD and TPUs. Beside accelerators, which have memory of their own, it was not measured.
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/0")


def use_tcmalloc() -> None:
    """Starts this program again with tcmalloc, unless it has it, or does not want it.

    An allocator can only be chosen before a process begins. Programs that this one starts choose
    for themselves: a sandbox may not have the library.

    Errors: ValueError about another choice.
    """
    preloaded = os.environ.get(PRELOADED, "").split()
    if LIBRARY in preloaded:
        preloaded.remove(LIBRARY)
        os.environ[PRELOADED] = " ".join(preloaded)
        if not preloaded:
            del os.environ[PRELOADED]
    elif is_wanted() and not is_in_use() and is_installed():
        os.environ[PRELOADED] = " ".join([LIBRARY, *preloaded])
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def is_in_use() -> bool:
    """Returns whether this process has tcmalloc, of whichever kind."""
    maps = Path("/proc/self/maps")  # Linux alone has it
    return maps.exists() and "/libtcmalloc" in maps.read_text()


def is_wanted() -> bool:
    """Returns whether this machine computes on its CPUs, and the user did not choose otherwise.

    Errors: ValueError about a choice that is not known.
    """
    choice = os.environ.get(CHOICE, TCMALLOC)
    if choice not in (TCMALLOC, SYSTEM):
        raise ValueError(f"{CHOICE}={choice} is not known: set {TCMALLOC} or {SYSTEM}")
    return choice == TCMALLOC and not any(map(os.path.exists, ACCELERATORS))


def is_installed() -> bool:
    """Returns whether the loader finds the library."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
