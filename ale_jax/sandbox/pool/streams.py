"""Jobs that somebody watches: their output as it comes, or a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.job import Job

KILL_S = 5.0
TERM = {"TERM": "xterm-256color"}


async def job_output(
    sandbox: AsyncSandbox, argv: Sequence[str] | str, stdin: bytes, arguments: dict[str, Any]
) -> AsyncIterator[tuple[str, bytes | int]]:
    """Runs a job, and yields what it writes, at last ("exit", its code).

    Waits for the job's output; is unblocked by its end, by the sandbox's (SandboxLost), or by
    whoever closes the iterator, which kills the job.
    """
    job = sandbox.spawn(argv, **arguments)
    # Beside the reading: a job may want to write much before it reads.
    feeder = asyncio.get_running_loop().create_task(_feed(job, stdin))
    has_ended = False
    try:
        while (piece := await job.receive()) is not None:
            yield piece
        code = await job.wait()
        has_ended = True
        yield "exit", code
    finally:
        feeder.cancel()
        if not has_ended:
            await _kill(job)


@contextlib.asynccontextmanager
async def job_on_terminal(
    sandbox: AsyncSandbox, command: str, rows: int, columns: int
) -> AsyncIterator[Job]:
    """A command of bash on a terminal of its own, which is killed at the end of the block."""
    job = sandbox.spawn(command, terminal=(rows, columns), env=TERM)
    try:
        yield job
    finally:
        await _kill(job)
        job.close_stdin()


async def _feed(job: Job, stdin: bytes) -> None:
    with contextlib.suppress(SandboxLost):  # who reads the output is told
        await job.write(stdin)
        job.close_stdin()


async def _kill(job: Job) -> None:
    # It may have ended by itself, or with its sandbox; a runner that is silent is the health
    # check's to find.
    with contextlib.suppress(SandboxError, TimeoutError):
        async with asyncio.timeout(KILL_S):
            await job.kill()
            await job.wait()
