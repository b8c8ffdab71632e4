"""Connects the proxy of a sandbox with the hosts that its policy permits."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ale_jax.sandbox.egress.policy import Address, Authority, is_inner_name
from ale_jax.sandbox.egress.request import Request
from ale_jax.sandbox.egress.streams import CHUNK, EgressLimits, EgressRefusal, Streams, timed_out
from ale_jax.sandbox.egress.uplink import Uplink
from ale_jax.sandbox.egress.upstream import UpstreamProxy

LOOKUP_THREADS = 4
MAX_ADDRESSES = 4  # of one name that are checked and tried


class Connector:
    """For one sandbox, in one event loop.

    uplink: what the operator says of the network around this host. look_up: returns the addresses
    of a canonical host; it may block. Errors: ValueError if the operator's proxy is unknown.
    """

    def __init__(
        self,
        uplink: Uplink,
        limits: EgressLimits,
        look_up: Callable[[str], Sequence[Address]],
    ):
        self._uplink, self._upstream = uplink, uplink.upstream()
        self._limits = limits
        self._look_up = look_up
        # Its own pool, since a lookup cannot be cancelled, and other work must not wait for it.
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "egress-lookup")

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def connect(self, request: Request) -> tuple[Request, Streams]:
        """Returns the streams to a request's host, and the request as it is to be sent there.

        Errors: Refusal.
        """
        upstream, authority = self._upstream, request.authority
        try:
            found = await self._find(authority.host)
        except EgressRefusal as refusal:
            # Not after a timeout, which a sandbox can bring about with lookups of its own.
            if upstream is None or refusal.rule != "unreachable":
                raise
            if is_inner_name(authority.host):
                raise _no_address(authority, "for the proxy, it would be a neighbour") from refusal
            return await self._through(upstream, request)
        reachable = self._judge(authority, found)
        if upstream is None:
            return request, await self._dial(authority, reachable)
        if named := [each for each in reachable if self._uplink.names(each, authority.port)]:
            return request, await self._dial(authority, named)
        if len(reachable) < len(found):  # the proxy chooses among them all
            raise _no_address(authority, ", ".join(map(str, found)))
        return await self._through(upstream, request)

    async def _dial(self, authority: Authority, addresses: Sequence[Address]) -> Streams:
        """Connects by a checked address, because the name could resolve differently now."""
        failures = []
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect_seconds / len(addresses)):
                    return await asyncio.open_connection(str(address), authority.port, limit=CHUNK)
            except OSError as error:
                failures.append(error)
        reasons = "; ".join(f"{a}: {e!r}" for a, e in zip(addresses, failures, strict=True))
        if all(isinstance(failure, TimeoutError) for failure in failures):
            raise timed_out(f"{authority} could not be connected to", reasons)
        raise _unreachable(authority, reasons)

    async def _through(self, upstream: UpstreamProxy, request: Request) -> tuple[Request, Streams]:
        authority = request.authority
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                if request.head is None:
                    return request, await upstream.tunnel(authority)
                # In full and without a tunnel, which many proxies only permit to port 443.
                head = upstream.head(authority, request.head)
                return dataclasses.replace(request, head=head), await upstream.open()
        except TimeoutError as error:
            line = f"{authority} could not be connected to"
            raise timed_out(line, f"by the proxy {upstream.authority}") from error
        except OSError as error:
            raise _unreachable(authority, f"proxy {upstream.authority}: {error!r}") from error

    async def _find(self, host: str) -> Sequence[Address]:
        """The addresses of a host, of which none is judged yet. Errors: Refusal."""
        lookup = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, host)
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                return (await lookup)[:MAX_ADDRESSES]
        except TimeoutError as error:
            raise timed_out(f"{host} could not be resolved") from error
        except OSError as error:
            line = f"{host} could not be resolved"
            raise EgressRefusal(502, "unreachable", line, str(error)) from error

    def _judge(self, authority: Authority, found: Sequence[Address]) -> list[Address]:
        """Those addresses of a host that may be reached, at least one. Errors: Refusal."""
        try:
            verdicts = {each: self._uplink.refusal(each, authority.port) for each in found}
        except OSError as error:  # this host is out of sockets, for instance
            raise _unreachable(authority, f"{error!r} while its addresses were judged") from error
        reachable = [address for address, reason in verdicts.items() if reason is None]
        if not reachable:
            reasons = "; ".join(f"{address}: {reason}" for address, reason in verdicts.items())
            raise _no_address(authority, reasons)
        return reachable


def _no_address(authority: Authority, reasons: str) -> EgressRefusal:
    return EgressRefusal(403, "address", f"{authority.host} has no public address", reasons)


def _unreachable(authority: Authority, reasons: str) -> EgressRefusal:
    line = f"{authority} could not be connected to"
    return EgressRefusal(502, "unreachable", line, reasons)
