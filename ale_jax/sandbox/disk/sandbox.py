"""A sandbox whose root is on disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.disk.references import Reference
from ale_jax.sandbox.exchange import Machine
from ale_jax.sandbox.spec import SandboxSpec


class DiskMachine(Machine, Protocol):
    """A machine with a root on disk."""

    async def freeze(self) -> Reference:
        """Returns a copy of its root that does not change. Errors: OSError."""

    async def booted(self) -> None:
        """Called once when its runner answers."""


class DiskSandbox(AsyncSandbox):
    """An `AsyncSandbox` that is reset by replacing its machine, since the agent may have changed
    everything in its root. A call in progress then fails with SandboxError.

    A snapshot is a `Reference` to a copy of the root, which stays on this host until the runtime
    is told to `forget` it.

    start: starts another machine from a copy of a root; None: from the image.
    """

    def __init__(
        self,
        machine: DiskMachine,
        spec: SandboxSpec,
        contents: Mapping[str, bytes],
        start: Callable[[Reference | None], Awaitable[DiskMachine]],
    ):
        super().__init__(machine, spec, contents)
        self._start = start

    async def boot(self, config: dict) -> None:
        await super().boot(config)
        await self._machine.booted()

    async def snapshot(self, max_bytes: int | None = None) -> bytes:
        try:
            reference = await self._machine.freeze()
        except OSError as error:
            raise SandboxError(f"the root cannot be copied: {error}") from error
        return bytes(reference)

    async def restore(self, snapshot: bytes) -> None:
        await self._replace(Reference.parse(snapshot))

    async def reset(self) -> None:
        await self._replace(None)

    async def _replace(self, origin: Reference | None) -> None:
        await self.kill_processes()  # so that what is running ends with a result
        new = DiskSandbox(await self._start(origin), self.spec, {}, self._start)
        await new.boot(self._config)
        for port, serve in self._doors.items():
            await new.listen(port, serve)
        old, self._machine = self._machine, new._machine
        self._machine.link.accept = self._accept
        await old.destroy()
