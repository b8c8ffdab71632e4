"""The pool of this machine, as a service offers it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.job import Job
from ale_jax.sandbox.pool.node_pool import NodePool

TERM = {"TERM": "xterm-256color"}


class TerminalPool(NodePool):
    """A node's pool whose sandboxes have terminals (see `terminal.OffersTerminals`)."""

    @contextlib.asynccontextmanager
    async def terminal(self, id: str, command: str, rows: int, columns: int) -> AsyncIterator[Job]:
        async with self._uses.of(id, None) as sandbox:
            job = sandbox.spawn(command, terminal=(rows, columns), env=TERM)
            try:
                yield job
            finally:
                with contextlib.suppress(SandboxError):  # it has ended, or the sandbox has
                    await job.kill()
                job.close_stdin()
