"""Calls on a pooled sandbox: which generation they reach, what they are told when it dies
meanwhile, and jobs whose output is streamed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.exchange import Job
from ale_jax.sandbox.pool.api import Cause, SandboxGone, State
from ale_jax.sandbox.pool.lifecycle import Lifecycle
from ale_jax.sandbox.pool.pooled_sandbox import PooledSandbox


class Leases:
    """The way from an id to its sandbox."""

    def __init__(self, lifecycle: Lifecycle):
        self._lifecycle = lifecycle

    def known(self, id: str) -> PooledSandbox:
        """Whatever is or was under that id. Errors: SandboxGone."""
        if id not in self._lifecycle.sandboxes:
            raise SandboxGone(id, None)
        return self._lifecycle.sandboxes[id]

    async def _up(self, id: str) -> PooledSandbox:
        """The sandbox that runs under `id`; waits for one that is being started or re-created."""
        while (pooled := self.known(id)).life.state is not State.RUNNING:
            if pooled.is_warm or pooled.life.cause is not None:
                raise pooled.gone()
            try:
                await asyncio.shield(pooled.arrival)
            except SandboxError as error:
                raise pooled.gone() from error
        return pooled

    @contextlib.asynccontextmanager
    async def of(self, id: str, generation: int | None) -> AsyncIterator[AsyncSandbox]:
        """The sandbox, for one call. What it says after its death never counts as an answer."""
        pooled = await self._up(id)
        sandbox, current = pooled.sandbox, pooled.generation
        if generation not in (None, current):
            raise SandboxLost(f"generation {generation} of {id!r} is lost; now it is {current}")
        with pooled.in_use():
            try:
                yield sandbox
            except SandboxLost as error:
                if pooled.sandbox is sandbox:
                    self._lifecycle.lose(pooled, str(error))
                if pooled.life.cause in (None, Cause.LOST):
                    raise
                raise pooled.gone() from error
        if pooled.generation != current or pooled.life.cause is Cause.LOST:
            raise SandboxLost(f"generation {current} of {id!r} was lost meanwhile")
        pooled.losses = 0


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
