"""A snapshot that does not fit on the host's disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator

from ale_jax.sandbox.api import Runtime, SandboxError
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from benchmarks.sandbox.findings import Trial
from benchmarks.sandbox.plan import SPEC

DISK_MB = 1
FAULT = "the host's disk is full"


async def try_snapshot(runtime: Runtime) -> Trial:
    """Tries a snapshot of more than DISK_MB, and then a small one. Only root can make a disk of
    that size."""
    with _small_disk() as folder:
        async with NodePool(runtime, PoolOptions(slots=1, snapshot_directory=folder)) as pool:
            id = (await pool.start(StartRequest(SPEC))).id
            await pool.call(id, "write", files={"big": os.urandom(2 * DISK_MB << 20)})
            try:
                await pool.snapshot(id)
            except (SandboxError, OSError) as error:
                seen = str(error)
            else:
                seen = ""
            left = os.listdir(folder)
            await pool.call(id, "write", files={"big": b"small"})
            info = await pool.snapshot(id)
            await pool.restore(id, info.id)
            content = await pool.call(id, "read", path="big")
    survived = bool(seen) and left == [] and content == b"small"
    seen = f"{seen[:60]}; nothing half written" if not left else f"left behind: {left}"
    return Trial(FAULT, "fault", "an error for the caller, whole files only", survived, seen)


@contextlib.contextmanager
def _small_disk() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ale-full-disk-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "ale-full-disk", folder]
        subprocess.run(mount, check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)
