"""A sandbox that can go on as another machine, in which nothing of the old one is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.spec import SandboxSpec


async def whole(start: Coroutine[Any, Any, AsyncSandbox]) -> AsyncSandbox:
    """Awaits a start, which goes on to its end if this is cancelled, lest it is left half done: its
    sandbox, of which nobody knows, is closed then."""
    starting = asyncio.create_task(start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.create_task(_closed(starting)))
        raise


async def _closed(starting: asyncio.Task[AsyncSandbox]) -> None:
    with contextlib.suppress(Exception):  # a start that failed leaves nothing to close
        await (await starting).close()


class RenewableSandbox(AsyncSandbox):
    """An `AsyncSandbox` whose machine can be replaced. A call that is in progress then fails with
    SandboxError.

    first: what it begins as. another: starts one of a spec, `whole`.
    """

    def __init__(
        self, first: AsyncSandbox, another: Callable[[SandboxSpec], Awaitable[AsyncSandbox]]
    ):
        super().__init__(first._machine, first.spec, first._contents)
        self._another = another
        self._is_of_spec = True  # else of another image
        self._take(first)

    async def renew(self, image: str = "") -> None:
        """As `reset`, but on a machine where nothing of an earlier episode has run, which takes as
        long as a start. Errors: SandboxStartError, with the old machine as it is then.

        image: of that machine; empty: the spec's, as which it goes on after the next reset, restore
            or renewal.
        """
        spec = dataclasses.replace(self.spec, image=image) if image else self.spec
        await self._replace(lambda: self._another(spec))
        self._is_of_spec = not image

    async def reset(self) -> None:
        if self._is_of_spec:
            await super().reset()
        else:
            await self.renew()

    async def restore(self, snapshot: bytes) -> None:
        if not self._is_of_spec:
            await self.renew()
        await super().restore(snapshot)

    async def _replace(self, start: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        await self.kill_processes()  # so that what is running ends with a result
        new = await start()
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
        self._contents = other._contents
        self._machine.link.accept = self._accept
        self._forget_jobs()
