"""The HTTP proxy through which a sandbox reaches what its policy permits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ale_jax.sandbox.egress.connection import EgressConnection, Upstream, forward, tunnel
from ale_jax.sandbox.egress.policy import Address, Authority, EgressPolicy, look_up, refusal
from ale_jax.sandbox.egress.request import read_request
from ale_jax.sandbox.egress.streams import CHUNK, EgressLimits, EgressRefusal, Reader, Writer

LOOKUP_THREADS = 4
MAX_ADDRESSES = 4  # of one name that are checked and tried
DEFAULT_LIMITS = EgressLimits()

Record = Callable[..., None]

log = logging.getLogger(__name__)


class EgressProxy:
    """The proxy of one sandbox, in one event loop. Only that loop's thread may call it.

    record: called for every refusal, as `monitor.events.EventLog.record`.
    look_up: returns the addresses of a canonical host; it may block.
    refuses: returns why an address may not be reached, whatever the policy, or None.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        record: Record,
        *,
        limits: EgressLimits = DEFAULT_LIMITS,
        look_up: Callable[[str], Sequence[Address]] = look_up,
        refuses: Callable[[Address], str | None] = refusal,
    ):
        self._policy = policy
        self._record = record
        self._limits = limits
        self._look_up = look_up
        self._refuses = refuses
        self._connections: set[EgressConnection] = set()
        self._refused = 0
        # Its own pool, since a lookup cannot be cancelled, and other work must not wait for it.
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "egress-lookup")

    @property
    def policy(self) -> EgressPolicy:
        return self._policy

    def set_policy(self, policy: EgressPolicy) -> None:
        """Replaces the policy, and cuts open connections that it does not permit."""
        self._policy = policy
        for connection in self._connections:
            where = connection.authority
            if where is not None and not policy.permits(where.host, where.port):
                line = f"the connection to {where} is no longer permitted"
                connection.cut(EgressRefusal(403, "policy_changed", line))

    def close(self) -> None:
        """Cuts all connections and permits no new ones."""
        self._policy = EgressPolicy("none")
        for connection in self._connections:
            connection.cut()
        self._threads.shutdown(wait=False)

    def __enter__(self) -> EgressProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """Serves one connection to its end, and closes it. No input makes it raise."""
        connection = EgressConnection(reader, writer, self._limits)
        try:
            await self._serve(connection)
        except EgressRefusal as refusal:
            self._tell(refusal, connection.authority)
            await connection.refuse(refusal)
        except OSError as error:
            log.info("the connection to %s was lost: %r", connection.authority, error)
        finally:
            connection.close()

    async def _serve(self, connection: EgressConnection) -> None:
        try:
            with self._counted(connection):
                async with connection.deadline:
                    await self._handle(connection)
        except (OSError, EgressRefusal) as error:
            if not connection.was_cut:
                if isinstance(error, TimeoutError) and not connection.answered:
                    raise _timeout(f"{connection.authority} did not answer") from error
                raise
        if connection.cut_for is not None:
            raise connection.cut_for

    @contextlib.contextmanager
    def _counted(self, connection: EgressConnection) -> Iterator[None]:
        if len(self._connections) >= self._limits.connections:
            line = f"there are {self._limits.connections} connections already; close one first"
            raise EgressRefusal(503, "connections", line)
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.remove(connection)

    async def _handle(self, connection: EgressConnection) -> None:
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                if not await connection.incoming.ahead(1):
                    return
                request = await read_request(connection.incoming, self._limits)
        except TimeoutError as error:
            raise EgressRefusal(408, "request", "the head of the request took too long") from error
        connection.authority = request.authority
        self._judge(request.authority)
        upstream = await self._connect(request.authority)
        connection.leads_through(upstream[1])
        if request.head is None:
            await tunnel(connection, upstream)
        else:
            await forward(connection, request, upstream)

    def _judge(self, authority: Authority) -> None:
        if self._policy.permits(authority.host, authority.port):
            return
        if self._policy.mode == "none":
            raise EgressRefusal(403, "mode", "this sandbox has no network")
        raise EgressRefusal(403, "allowlist", f"{authority} is not on this sandbox's allowlist")

    async def _connect(self, authority: Authority) -> Upstream:
        """Connects by a checked address, because the name could resolve differently now."""
        candidates = await self._addresses(authority.host)
        failures = []
        for address in candidates:
            try:
                async with asyncio.timeout(self._limits.connect_seconds / len(candidates)):
                    return await asyncio.open_connection(str(address), authority.port, limit=CHUNK)
            except OSError as error:
                failures.append(error)
        reasons = "; ".join(f"{a}: {e!r}" for a, e in zip(candidates, failures, strict=True))
        if all(isinstance(failure, TimeoutError) for failure in failures):
            raise _timeout(f"{authority} could not be connected to", reasons)
        raise EgressRefusal(502, "unreachable", f"{authority} could not be connected to", reasons)

    async def _addresses(self, host: str) -> list[Address]:
        """The addresses of a host that may be reached, at least one. Errors: Refusal."""
        lookup = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, host)
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                found = (await lookup)[:MAX_ADDRESSES]
            verdicts = {address: self._refuses(address) for address in found}
        except TimeoutError as error:
            raise _timeout(f"{host} could not be resolved") from error
        except OSError as error:
            line = f"{host} could not be resolved"
            raise EgressRefusal(502, "unreachable", line, str(error)) from error
        reachable = [address for address, reason in verdicts.items() if reason is None]
        if not reachable:
            reasons = "; ".join(f"{address}: {reason}" for address, reason in verdicts.items())
            raise EgressRefusal(403, "address", f"{host} has no public address", reasons)
        return reachable

    def _tell(self, refusal: EgressRefusal, authority: Authority | None) -> None:
        self._refused += 1
        if self._refused <= self._limits.recorded:
            self._record(
                refusal.kind,
                f"{refusal.line} ({refusal.detail})" if refusal.detail else refusal.line,
                host=authority.host if authority else None,
                port=authority.port if authority else None,
                rule=refusal.rule,
                status=refusal.status,
            )
        if self._refused == self._limits.recorded:
            self._record("egress_muted", "further refusals of this sandbox are not recorded")


def _timeout(what: str, detail: str = "") -> EgressRefusal:
    return EgressRefusal(504, "timeout", f"{what} in time", detail)
