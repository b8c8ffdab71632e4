"""Clients of the service for coroutines:

    async with client.start(spec) as box:
        await box.run("ls")

Each method raises the errors of the method of that name of `AsyncSandbox` or `SandboxPool`, and
PermissionError or QuotaExceeded if the token does not permit the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import httpx

from ale_jax.sandbox.api import ExecResult, Expected, FileInfo, SandboxError
from ale_jax.sandbox.pool.api import (
    NodeStatus,
    SandboxGone,
    SnapshotInfo,
    StartRequest,
    State,
    Status,
)
from ale_jax.sandbox.relay import check_port, relay_to
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.sdk.calls import (
    REQUEST_ID,
    Call,
    exchange,
    form_of,
    http_options,
    tls_context,
)
from ale_jax.sandbox.sdk.forwarding import forwarded
from ale_jax.sandbox.sdk.processes import Processes
from ale_jax.sandbox.sdk.streams import AsyncPipes, ToPort, WebSockets, relayed
from ale_jax.sandbox.service import protocol, uploads
from ale_jax.sandbox.service.protocol import EventsAnswer, PoolStats, TenantUsage, plain
from ale_jax.sandbox.spec import SandboxSpec

T = TypeVar("T")
CANCEL_S = 10.0


class StartOptions(TypedDict, total=False):
    """The fields of a `StartRequest` besides the spec."""

    id: str
    labels: Mapping[str, str]
    idle_seconds: float
    deadline_seconds: float
    recreate: bool
    snapshot: str


class AsyncSandboxClient:
    """Holds persistent connections to one service. For one event loop.

    token: the bearer token; None for a service without tokens.
    verify: as for httpx, for example an `ssl.SSLContext` for a service with your own certificate.
    in_clear: the token may leave this machine without encryption.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        verify: ssl.SSLContext | bool = True,
        in_clear: bool = False,
    ):
        tls = tls_context(url, verify)
        self.http = httpx.AsyncClient(**http_options(url, token, tls, in_clear))
        self.sockets = WebSockets(url.rstrip("/"), token, tls)
        self._has_answered = False

    def start(self, spec: SandboxSpec, **options: Unpack[StartOptions]) -> Starting:
        """Starts a sandbox; `await` the result or enter it with `async with`.

        Errors: SandboxStartError, PoolFull, ValueError.
        """
        return Starting(self._started(StartRequest(spec, **options)))

    async def start_many(
        self, spec: SandboxSpec, count: int, spare: int = 0, **options: Unpack[StartOptions]
    ) -> list[AsyncRemoteSandbox]:
        """Starts `count + spare` identical sandboxes; returns the first `count` that are ready."""
        body = plain(StartRequest(spec, **options)) | {"count": count, "spare": spare}
        return self.boxes(await self.do(Call(protocol.START_MANY, body=body)))

    async def attach(self, id: str) -> AsyncRemoteSandbox:
        """Returns a sandbox that was started elsewhere. SandboxGone if you have none with that
        id."""
        return AsyncRemoteSandbox(self, await self.do(Call(protocol.STATUS, id)))

    async def statuses(self) -> list[Status]:
        """Returns those of your sandboxes; for an administrator, of everybody's."""
        return await self.do(Call(protocol.STATUSES))

    async def warm(self, spec: SandboxSpec, count: int) -> None:
        """Keeps `count` sandboxes of `spec` ready on each node. Administrators only."""
        await self.do(Call(protocol.WARM, body={"spec": plain(spec), "count": count}))

    async def nodes(self) -> list[NodeStatus]:
        return await self.do(Call(protocol.NODES))

    async def stats(self) -> PoolStats:
        """Counts your sandboxes by state, and the slots of all nodes."""
        return await self.do(Call(protocol.STATS))

    async def usage(self) -> list[TenantUsage]:
        """Returns that of your token; for an administrator, of all that have called."""
        return await self.do(Call(protocol.USAGE))

    async def events(self, after: int | None = None, limit: int = 500) -> EventsAnswer:
        """Returns what happened to your sandboxes after that event; None: the latest."""
        params = {"limit": limit} | ({} if after is None else {"after": after})
        return await self.do(Call(protocol.EVENTS, params=params))

    async def do(self, call: Call[T]) -> T:
        request = call.request(self.http)
        try:
            result = await exchange(call, request, self.http.send, self._has_answered)
        except asyncio.CancelledError:
            if call.endpoint.ends_with_caller:
                await self._cancel(request.headers[REQUEST_ID])
            raise
        self._has_answered = True
        return result

    async def _cancel(self, id: str) -> None:
        """Has the service end a request, which it does not notice by the connection: it may be sent
        again. A service that does not answer ends what is idle by itself."""
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await self.do(Call(protocol.CANCEL, request_id=id))

    async def close(self) -> None:
        """Closes the connections; sandboxes keep running."""
        await self.http.aclose()

    async def __aenter__(self) -> AsyncSandboxClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _started(self, request: StartRequest) -> AsyncRemoteSandbox:
        return AsyncRemoteSandbox(self, await self.do(Call(protocol.START, body=plain(request))))

    def boxes(self, statuses: list[Status]) -> list[AsyncRemoteSandbox]:
        return [AsyncRemoteSandbox(self, status) for status in statuses]


async def close_all(boxes: Sequence[AsyncRemoteSandbox]) -> None:
    for box in boxes:
        await box.close()


class Starting(AbstractAsyncContextManager["AsyncRemoteSandbox"]):
    """A sandbox that is being started: `await` it, or enter it with `async with`."""

    def __init__(self, start: Coroutine[Any, Any, AsyncRemoteSandbox]):
        self._start = start
        self._box: AsyncRemoteSandbox | None = None

    async def started(self) -> AsyncRemoteSandbox:
        self._box = await self._start
        return self._box

    def __await__(self) -> Generator[Any, None, AsyncRemoteSandbox]:
        return self._start.__await__()

    async def __aenter__(self) -> AsyncRemoteSandbox:
        return await self.started()

    async def __aexit__(self, *exc: object) -> None:
        assert self._box is not None
        await self._box.close()


class AsyncRemoteSandbox(Processes):
    """A sandbox of the service. Leaving its `async with` block stops it."""

    def __init__(self, client: AsyncSandboxClient, status: Status):
        super().__init__(client, status.id, status.spec)
        self._boxes = client.boxes

    async def run(
        self, command: str, timeout: float | None = None, session: str = MAIN
    ) -> ExecResult:
        """Runs a command in a session. timeout: seconds; None: the spec's."""
        body = {"command": command, "timeout": timeout, "session": session}
        return await self._do(protocol.RUN, body=body, seconds=self._limit(timeout))

    def relay(self, port: int, host: str, target: int) -> AbstractAsyncContextManager[None]:
        """Lets programs in the sandbox reach `target` of `host`, as this process reaches it, at
        `port` of their loopback, whatever the network policy, for the duration of the block.

        Errors: SandboxError if the port is in use; at the end of the block SandboxLost, if the
        relay broke in it.
        """
        return relayed(self._client.sockets, self.id, port, relay_to(host, target))

    def forward(self, port: int, local: int = 0) -> AbstractAsyncContextManager[int]:
        """Yields a port of this machine's loopback at which whatever listens on `port` inside is
        reached, for the duration of the block. local: which one; 0: any that is free.

        Errors: OSError if it is in use; ValueError if there is no such port. If nothing listens
        inside, a connection is closed at once.
        """
        check_port(port)
        what = ToPort(self.id, port)
        return forwarded(lambda: AsyncPipes(self._client.sockets, what), local)

    async def open_session(
        self,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: str = "/work",
        user: str = "",
    ) -> None:
        """Opens another bash session. SandboxError if the name is in use.

        user: a name in /etc/passwd. Another one than the spec's user needs that to be root.
        """
        body = {"name": name, "env": dict(env or {}), "cwd": cwd, "user": user}
        await self._do(protocol.OPEN_SESSION, body=body)

    async def close_session(self, name: str) -> None:
        """Kills everything that runs in the session. SandboxError if there is no such session."""
        await self._do(protocol.CLOSE_SESSION, session=name)

    async def interrupt(self, session: str = MAIN, seconds: float = 2.0) -> bool:
        """Sends Ctrl-C to the session's command. Returns False if none was running."""
        body = {"seconds": seconds}
        answer = await self._do(protocol.INTERRUPT, session=session, body=body)
        return answer["interrupted"]

    async def begin(
        self, command: str, session: str = MAIN, rows: int = 0, columns: int = 0
    ) -> None:
        """Starts a command in a session, on a terminal of that size; 0: it tells none.
        SandboxError if the session is busy."""
        body = {"command": command, "rows": rows, "columns": columns}
        await self._do(protocol.BEGIN, session=session, body=body)

    async def send(self, text: str, session: str = MAIN) -> None:
        """Types text into the command that `begin` started. SandboxError if none runs."""
        await self._do(protocol.SEND, session=session, body={"text": text})

    async def expect(
        self, pattern: str | None = None, timeout: float | None = None, session: str = MAIN
    ) -> Expected:
        """Returns the output of that command up to a match of a regular expression; for None, up
        to its end. timeout: seconds; None: the spec's; afterwards it goes on. ValueError."""
        body, limit = {"pattern": pattern, "timeout": timeout}, self._limit(timeout)
        return await self._do(protocol.EXPECT, session=session, body=body, seconds=limit)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Returns the beginning of a file. FileNotFoundError, ValueError."""
        return await self._do(protocol.READ, params={"path": path, "max_bytes": max_bytes})

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Writes files below /work. ValueError, OSError."""
        content, kind = form_of(files)
        await self._do(protocol.WRITE, content=content, content_type=kind)

    async def replace_directory(self, path: str, files: Mapping[str, bytes]) -> None:
        """Kills the agent's processes, and makes `path` (absolute) a directory that contains only
        `files` (paths relative to it), which only the agent's user may enter. ValueError, OSError.
        """
        content, kind = form_of(files)
        params = {"path": path}
        await self._do(protocol.REPLACE, params=params, content=content, content_type=kind)

    async def list(self, path: str = "/work") -> Sequence[FileInfo]:
        """Lists a directory. FileNotFoundError."""
        return await self._do(protocol.LIST, params={"path": path})

    async def upload(self, directory: str | Path, path: str = "/work") -> None:
        """Copies the contents of a local directory into a directory of the sandbox, with
        permissions, times, and links that stay inside.

        ValueError, before anything is sent, if there is another link or a device among them.
        """
        await self.unpack(await asyncio.to_thread(uploads.pack, directory), path)

    async def unpack(self, archive: bytes, path: str = "/work") -> None:
        """Unpacks a tar archive into a directory. ValueError for devices, and for links that may
        lead out of it."""
        content = {"content": archive, "content_type": "application/x-tar"}
        await self._do(protocol.UNPACK, params={"path": path}, **content)

    async def download(
        self, path: str, directory: str | Path, max_bytes: int = uploads.MAX_BYTES
    ) -> None:
        """Copies the contents of a directory of the sandbox into a local directory.

        The contents come from the agent and are not trusted: ValueError for devices, links that may
        lead out of it, absolute paths, `..`, or more than `max_bytes`; nothing is written then.
        """
        archive = await self._do(protocol.PACK, params={"path": path})
        await asyncio.to_thread(uploads.unpack, archive, directory, max_bytes)

    async def snapshot(self) -> SnapshotInfo:
        """Stores the working files. `start` and `restore` take the id of the result."""
        return await self._do(protocol.SNAPSHOT)

    async def restore(self, snapshot: str) -> None:
        """Like `reset`, then restores the working files of that snapshot. ValueError."""
        await self._do(protocol.RESTORE, body={"snapshot": snapshot})

    async def renew(self, seconds: float = 0.0) -> Status:
        """Lets the sandbox live for `seconds` from now; 0: as long as your token may have."""
        return await self._do(protocol.RENEW, body={"seconds": seconds})

    async def fork(self, count: int = 1) -> Sequence[AsyncRemoteSandbox]:
        """Starts `count` new sandboxes with the same working files."""
        return self._boxes(await self._do(protocol.FORK, body={"count": count}))

    async def reset(self) -> None:
        """Resets the sandbox: nothing runs, /work and /tmp are empty."""
        await self._do(protocol.RESET)

    async def replace_machine(self, image: str = "") -> None:
        """As `reset`, but on another machine, where nothing of this sandbox has run before. Takes
        as long as a start. image: as of `JudgedSandbox.renew`."""
        await self._do(protocol.MACHINE, body={"image": image})

    async def kill_processes(self) -> None:
        """Kills everything that the agent started. Files are kept."""
        await self._do(protocol.KILL_PROCESSES)

    async def status(self) -> Status:
        return await self._do(protocol.STATUS)

    async def alive(self) -> bool:
        return (await self.status()).state is State.RUNNING

    async def close(self) -> None:
        """Stops the sandbox, if it still exists."""
        with contextlib.suppress(SandboxGone):
            await self._do(protocol.STOP)

    async def __aenter__(self) -> AsyncRemoteSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
