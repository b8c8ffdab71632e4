"""The HTTP proxy through which a sandbox reaches what its policy permits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence

from ale_jax.sandbox.egress.connector import Connector
from ale_jax.sandbox.egress.policy import Address, Authority, EgressPolicy, look_up
from ale_jax.sandbox.egress.request import (
    UNRECOGNIZED_NAME,
    Request,
    body_parts,
    read_hello,
    read_request,
)
from ale_jax.sandbox.egress.streams import (
    CHUNK,
    EgressLimits,
    EgressRefusal,
    Incoming,
    Reader,
    Streams,
    Writer,
    timed_out,
)
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink

DEFAULT_LIMITS = EgressLimits()

Record = Callable[..., None]

log = logging.getLogger(__name__)


class EgressProxy:
    """The proxy of one sandbox, in one event loop. Only that loop's thread may call it.

    record: called for every refusal, as `monitor.events.EventLog.record`.
    uplink, look_up: as of `Connector`, whose errors it raises.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        record: Record,
        *,
        uplink: Uplink = DIRECT,
        limits: EgressLimits = DEFAULT_LIMITS,
        look_up: Callable[[str], Sequence[Address]] = look_up,
    ):
        self._policy = policy
        self._record = record
        self._limits = limits
        self._connector = Connector(uplink, limits, look_up)
        self._connections: set[EgressConnection] = set()
        self._refused = 0

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
        self._connector.close()

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
                    raise timed_out(f"{connection.authority} did not answer") from error
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
        request, far = await self._connector.connect(request)
        connection.leads_through(far[1])
        if request.head is None:
            await tunnel(connection, far)
        else:
            await forward(connection, request, far)

    def _judge(self, authority: Authority) -> None:
        if self._policy.permits(authority.host, authority.port):
            return
        if self._policy.mode == "none":
            raise EgressRefusal(403, "mode", "this sandbox has no network")
        raise EgressRefusal(403, "allowlist", f"{authority} is not on this sandbox's allowlist")

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


class EgressConnection:
    """A connection between a sandbox and the host that it asks for.

    authority: where it leads; None until it is requested.
    answered: at least one byte was sent back.
    deadline: a timeout around everything that the connection does; TimeoutError ends it.
    was_cut: it was ended early, so other errors are ignored.
    cut_for: the refusal to send in that case, if any.
    """

    def __init__(self, reader: Reader, writer: Writer, limits: EgressLimits):
        self.incoming = Incoming(reader)
        self.authority: Authority | None = None
        self.answered = False
        self.was_cut = False
        self.cut_for: EgressRefusal | None = None
        self.deadline = asyncio.timeout(None)
        self._lingers = False
        self._writer = writer
        self._far: asyncio.StreamWriter | None = None
        self._limits = limits

    def leads_through(self, far: asyncio.StreamWriter) -> None:
        self._far = far
        self.touch()

    async def send(self, data: bytes) -> None:
        """Sends data to the sandbox. Errors: OSError."""
        self.answered = True
        self._writer.write(data)
        await self._writer.drain()
        self.touch()

    async def send_on(self, data: bytes) -> None:
        """Sends data to the far side. Errors: OSError."""
        self._far.write(data)
        await self._far.drain()
        self.touch()

    def touch(self) -> None:
        """Restarts the idle timeout, after any activity."""
        if not (self._lingers or self.was_cut):
            self._end_in(self._limits.idle_seconds)

    def linger(self) -> None:
        """Starts the linger timeout: the sandbox sends no more, so its client may be gone."""
        if not self.was_cut:
            self._lingers = True
            self._end_in(self._limits.linger_seconds)

    def cut(self, refusal: EgressRefusal | None = None) -> None:
        """Ends the connection at once, so that not one more byte leaves."""
        self.was_cut, self.cut_for = True, refusal
        self._abort()
        self._end_in(0.0)

    async def refuse(self, refusal: EgressRefusal) -> None:
        """Sends the refusal, if the state of the connection and the client still permit it."""
        if self.answered and refusal.rule != "server_name":
            return
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(self._limits.head_seconds):
                self._writer.write(UNRECOGNIZED_NAME if self.answered else refusal.answer())
                await self._writer.drain()

    def close(self) -> None:
        self._abort()
        self._writer.close()

    def _abort(self) -> None:
        # Not close(), which would wait for a far side that does not read.
        if self._far is not None:
            self._far.transport.abort()

    def _end_in(self, seconds: float) -> None:
        if not self.deadline.expired():  # an expired timeout cannot be rescheduled
            self.deadline.reschedule(asyncio.get_running_loop().time() + seconds)


ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def tunnel(connection: EgressConnection, far: Streams) -> None:
    """Relays bytes both ways until the far side closes. Errors: Refusal, OSError."""
    reader, writer = far

    async def ask() -> None:
        await connection.send_on(await read_hello(connection.incoming, connection.authority))
        while data := await connection.incoming.read():
            await connection.send_on(data)
        writer.write_eof()
        connection.linger()

    await connection.send(ESTABLISHED)
    await _until_answered(ask(), _answer(connection, reader))


async def forward(connection: EgressConnection, request: Request, far: Streams) -> None:
    """Forwards one request, and relays the response until the far side closes.

    Anything that the sandbox sends after the request is ignored.

    Errors: Refusal, OSError.
    """

    async def ask() -> None:
        await connection.send_on(request.head)
        async for part in body_parts(connection.incoming, request.body_bytes):
            await connection.send_on(part)
        if not await connection.incoming.read(1):
            connection.linger()

    try:
        await _until_answered(ask(), _answer(connection, far[0]))
    except OSError as error:
        if connection.answered:
            raise
        raise _no_answer(connection) from error
    if not connection.answered:
        raise _no_answer(connection)


async def _answer(connection: EgressConnection, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK):
        await connection.send(data)


async def _until_answered(ask: Coroutine, answer: Coroutine) -> None:
    """Runs both until `answer` ends or one of them fails; re-raises that error unwrapped."""
    try:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask)
            await answer
            asking.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


def _no_answer(connection: EgressConnection) -> EgressRefusal:
    return EgressRefusal(
        502, "unreachable", f"{connection.authority} closed the connection without a response"
    )
