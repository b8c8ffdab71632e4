"""The calls of a sandbox that concern its ports and its network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.egress.proxy import EgressProxy
from ale_jax.sandbox.exchange import FILES_S, Exchange, Machine
from ale_jax.sandbox.link import Stream
from ale_jax.sandbox.relay import Door, Serve, Tunnel, check_port, relay_to
from ale_jax.sandbox.spec import NO_NETWORK


class PortConnection:
    """A connection to `port` of a sandbox. It has the methods of a `SandboxProcess` on pipes, so
    that whoever carries the input and output of one carries those of the other."""

    def __init__(self, stream: Stream, port: int):
        self._stream, self._port = stream, port

    async def receive(self) -> tuple[str, bytes] | None:
        """What the program inside has sent; None when it has ended its side."""
        piece = await self._stream.receive()
        return None if piece is None else ("stdout", piece[1])

    async def write(self, data: bytes) -> None:
        """Waits while the program does not read. Empty data ends this side."""
        if data:
            await self._stream.send(data, even_if_ended=False)
        else:
            self._stream.end()

    async def resize(self, rows: int, columns: int) -> None:
        raise ValueError("a connection has no terminal")

    async def wait(self) -> int:
        """Returns 0 when the program has ended its side. SandboxError if there is none."""
        outcome = await self._stream.outcome()
        if "error" in outcome:
            raise SandboxError(f"port {self._port} of the sandbox: {outcome['error']!s:.200}")
        return 0


class PortCalls(Exchange):
    """What programs inside reach outside, and what is reached of them."""

    def __init__(self, machine: Machine):
        super().__init__(machine)
        self._doors: dict[int, Door] = {}
        self._proxy: EgressProxy | None = None

    async def listen(self, port: int, serve: Serve) -> None:
        """Calls `serve` for each connection to `port` of the sandbox's loopback, from now on, also
        after resets.

        Errors: ValueError if there is no such port; SandboxError if it is in use.
        """
        await self._open(port, Door(serve))

    @contextlib.asynccontextmanager
    async def listening(self, port: int, serve: Serve) -> AsyncIterator[None]:
        """As `listen`, for the duration of the block, which cuts open connections at its end."""
        await self.listen(port, serve)
        try:
            yield
        finally:
            await self._shut(port)

    def relay(self, port: int, host: str, target: int) -> AbstractAsyncContextManager[None]:
        """Lets programs inside reach `target` of `host` at `port` of their loopback, whatever the
        network policy, for the duration of the block. Errors: as of `listen`.
        """
        return self.listening(port, relay_to(host, target))

    @contextlib.asynccontextmanager
    async def tunnel(self, port: int) -> AsyncIterator[Tunnel]:
        """As `relay`, but the far end of the tunnel dials."""
        tunnel = Tunnel()
        watching = asyncio.get_running_loop().create_task(self._watch(tunnel))
        try:
            async with self.listening(port, tunnel.serve):
                yield tunnel
        finally:
            watching.cancel()
            tunnel.close()

    async def connect(self, port: int) -> Stream:
        """Connects to the program that listens on `port` inside the sandbox.

        If nothing listens on the port, the stream ends immediately with an "error" in its outcome.

        Errors: ValueError if there is no such port; SandboxLost.
        """
        check_port(port)
        return self._machine.link.open({"do": "connect", "port": port}, body=True)

    @contextlib.asynccontextmanager
    async def connected(self, port: int) -> AsyncIterator[PortConnection]:
        """As `connect`, for the duration of the block."""
        stream = await self.connect(port)
        try:
            yield PortConnection(stream, port)
        finally:
            stream.cancel()

    async def open_network(self, proxy: EgressProxy, port: int, serve: Serve) -> None:
        """Makes `proxy` reachable on `port` inside the sandbox, from now on."""
        self._proxy = proxy
        await self.listen(port, serve)

    @property
    def network(self) -> EgressPolicy:
        """The network policy that currently applies."""
        return self._proxy.policy if self._proxy else NO_NETWORK

    def set_network(self, policy: EgressPolicy) -> None:
        """Replaces the network policy, and cuts connections that the new one does not permit.

        Errors: ValueError for a sandbox that was started without a network.
        """
        if self._proxy is None:
            raise ValueError(
                f"network {policy.mode!r}: the sandbox has no network; start it with spec.network"
            )
        self._proxy.set_policy(policy)

    async def _open(self, port: int, door: Door) -> None:
        check_port(port)
        if port in self._doors:
            raise SandboxError(f"port {port} is in use: it is relayed already")
        self._doors[port] = door  # before the first connection can come
        try:
            await self._ask({"do": "listen", "port": port}, FILES_S)
        except BaseException:  # cancelled: the runner may listen meanwhile
            await self._shut(port)
            raise

    async def _shut(self, port: int) -> None:
        with contextlib.suppress(SandboxError):  # the next call meets it again, if it is lost
            await self._ask({"do": "unlisten", "port": port}, FILES_S)
        self._doors.pop(port).close()  # after the answer: no connection comes any more

    async def _watch(self, tunnel: Tunnel) -> None:
        """Ends the tunnel when the sandbox is lost. A reset may replace the machine before."""
        while True:
            machine = self._machine
            try:
                await machine.link.until_lost()
            except SandboxLost as error:
                if machine is self._machine:
                    tunnel.fail(error)
                    return

    def _accept(self, stream: Stream, request: dict[str, Any]) -> None:
        door = self._doors.get(request.get("port", 0))
        if door is None:
            raise ValueError(f"no handler for {request!r:.80}")
        door.enter(stream)
