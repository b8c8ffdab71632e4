"""A sandbox whose root is on disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.disk.references import Reference

Start = Callable[[Reference | None], Awaitable[AsyncSandbox]]


class DiskSandbox(AsyncSandbox):
    """An `AsyncSandbox` that is reset by replacing its machine, since the agent may have changed
    everything in its root. A call in progress then fails with SandboxError.

    A snapshot is a `Reference` to a copy of the root, which stays on this host until the runtime
    is told to `forget` it.

    first: what it begins as. start: starts another one, from a copy of a root or, with None, from
    the image.
    """

    def __init__(self, first: AsyncSandbox, start: Start):
        super().__init__(first._machine, first.spec, {})
        self._start = start
        self._take(first)

    async def snapshot(self, max_bytes: int | None = None) -> bytes:
        """max_bytes: SandboxError if it holds more."""
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
        new = await self._start(origin)
        try:
            for port in self._doors.keys() - new._doors.keys():
                await new._open(port, self._doors[port])
            if new._proxy is not None:
                new.set_network(self.network)
        except BaseException:
            await new.close()
            raise
        machine, proxy = self._machine, self._proxy
        self._take(new)
        if proxy is not None:
            proxy.close()
        await machine.destroy()

    def _take(self, other: AsyncSandbox) -> None:
        self._machine, self._proxy, self._doors = other._machine, other._proxy, other._doors
        self._machine.link.accept = self._accept
