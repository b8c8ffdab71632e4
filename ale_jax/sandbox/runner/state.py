"""What a reset must bring back to its start. It is compared, since a change that went unnoticed
would falsify every later episode."""

import os
import resource
from collections.abc import Callable, Iterable

from . import kernel

# Sysctls that the owner of an IPC namespace may write.
SYSCTLS = ("sem", "shmmax", "shmall", "shmmni", "shm_rmid_forced", "msgmax", "msgmnb", "msgmni")
LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


class SystemState(dict):
    """Descriptions, by subject."""

    def differences(self, now: "SystemState") -> str:
        """What is different now, as text; empty if nothing is."""
        return "; ".join(
            f"{subject}: {now[subject]}, not {then}"
            for subject, then in self.items()
            if now[subject] != then
        )


def describe(parts: Iterable[str], others: Callable[[], set[int]]) -> SystemState:
    """parts: directories, which must be empty. others: the pids of the agent's processes."""
    return SystemState(
        limits={name: resource.getrlimit(number) for name, number in LIMITS.items()},
        scheduling=(os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))),
        processes=sorted(others()),
        sysctls={name: kernel.read(f"sys/kernel/{name}") for name in SYSCTLS},
        mounts=_mounts(),
        files={path: _use(path) for path in parts},
    )


def _mounts() -> list[str]:
    """Each mount's place, options and file system, without numbers that a remade one gets anew, and
    without the source, which may be deleted later (a socket)."""
    lines = kernel.read("self/mountinfo").decode().splitlines()
    return [" ".join(line.split(" ")[4:]) for line in lines]


def _use(path: str) -> tuple[int, ...]:
    """Owner and mode of a directory, and what is used of the file system below it."""
    status, disk = os.stat(path), os.statvfs(path)
    used = (disk.f_blocks - disk.f_bfree, disk.f_files - disk.f_ffree)
    return (status.st_uid, status.st_gid, status.st_mode, *used)
