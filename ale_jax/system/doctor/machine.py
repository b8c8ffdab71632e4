"""What a run needs of the machine besides its devices and disk."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

from ale_jax.sandbox.pool.machines import FILES_BESIDE, FILES_EACH
from ale_jax.system.actors.cluster import OBJECT_STORE_BYTES
from ale_jax.system.doctor.findings import Finding, ok, warn

SHM = Path("/dev/shm")


def check_open_files(conversations: int) -> Finding:
    """conversations: at once, each with a sandbox and connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FILES_BESIDE + FILES_EACH * conversations
    found = f"{soft} at once, and {conversations} conversations may need {need}"
    if soft >= need:
        return ok("open files", found)
    raised = f"ulimit -n {need}"
    if hard < need:
        raised += f", after the hard limit, {hard}, was raised (LimitNOFILE= in systemd)"
    return warn("open files", found, raised)


def check_shared_memory(folder: Path = SHM) -> Finding:
    """Whether Ray's object store fits where Ray puts it."""
    free, need = shutil.disk_usage(folder).free, OBJECT_STORE_BYTES
    found = f"{free >> 20} MiB are free in {folder}, and Ray's object store takes {need >> 20}"
    if free >= need:
        return ok("shared memory", found)
    return warn(
        "shared memory",
        found,
        "Ray will use the disk, which is slower: free some, or start the container with "
        "--shm-size=1g",
    )
