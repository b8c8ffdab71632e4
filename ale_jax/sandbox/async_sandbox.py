"""The host's side of a sandbox: its methods become requests to the runner. For one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ale_jax.sandbox.api import (
    ExecResult,
    FileInfo,
    ProcessResult,
    SandboxError,
    SandboxLost,
    SandboxStats,
)
from ale_jax.sandbox.bootstrap import bootstrap
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.egress.proxy import EgressProxy
from ale_jax.sandbox.job import Job
from ale_jax.sandbox.link import Link, Stream
from ale_jax.sandbox.output import OutputSink, join
from ale_jax.sandbox.runner import wire
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.spec import SandboxSpec

T = TypeVar("T")

START_S = 30.0
FILES_S = 30.0
# Beyond a command's own time: what the runner may need to kill every process of the agent.
RUN_GRACE_S = 15.0
EXIT_MISUSE = 2  # what bash itself answers to text that it cannot parse
MAX_ENTRIES = 10_000
MAX_LISTING_BYTES = 8 << 20


class Machine(Protocol):
    """What a runtime starts: the isolated processes with the runner among them."""

    link: Link

    async def alive(self) -> bool: ...

    async def destroy(self) -> None:
        """Ends it and frees what it held, or leaves it to the reaper. May be called again."""

    def last_words(self) -> str:
        """What its standard error said, once it is destroyed."""


class AsyncSandbox:
    """`api.Sandbox` with coroutines, and what goes beyond it. Calls may overlap; a session takes
    one command at a time."""

    def __init__(self, machine: Machine, spec: SandboxSpec):
        self._machine, self._spec = machine, spec
        self._jobs = itertools.count()
        self._doors: dict[int, Callable[[Stream], Awaitable[None]]] = {}
        self._serving: set[asyncio.Task] = set()
        self._proxy: EgressProxy | None = None
        # Sparse files are archived as such; of small ones, headers and padding take 1 KiB each.
        self._max_snapshot = 4 * spec.files_mb << 20

    async def boot(self, config: dict[str, Any]) -> None:
        """Sends the runner in, and returns when it serves. config: see `bootstrap`."""
        link = self._machine.link
        link.accept = self._accept
        link.post(bootstrap(config))
        try:
            greeting = await asyncio.wait_for(link.greeting(), START_S)
            if greeting.get("protocol") != wire.PROTOCOL:
                raise SandboxLost(f"the runner speaks another protocol: {greeting!r:.80}")
            await self._ask({"do": "open", "session": MAIN, "cwd": "/work", "env": {}}, START_S)
        except TimeoutError:
            raise await self._lost(f"no runner within {START_S:g} s") from None
        except SandboxLost as error:
            raise await self._lost(str(error)) from error

    async def run(
        self,
        command: str,
        timeout: float | None = None,
        session: str = MAIN,
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """As `api.Sandbox.run`. on_output: told of the output's head as it is written."""
        started = time.monotonic()
        limit = self._limit(timeout)
        if "\0" in command:
            return ExecResult("bash: the command contains a NUL byte\n", EXIT_MISUSE, False, 0, 0.0)
        request = {"do": "run", "session": session, "timeout": limit, "live": on_output is not None}
        request["output_bytes"] = self._spec.output_bytes
        sink = OutputSink(self._spec.output_bytes, on_output)
        body = command.encode("utf-8", "replace")
        reply = await self._ask(request, limit + RUN_GRACE_S, body, sink)
        return await self._made(
            lambda: ExecResult(
                output=join(bytes(sink.data), int(reply["head"]), int(reply["omitted"])),
                exit_code=int(reply["exit_code"]),
                timed_out=bool(reply["timed_out"]),
                omitted_bytes=int(reply["omitted"]),
                seconds=time.monotonic() - started,
            )
        )

    async def open_session(
        self, name: str, env: Mapping[str, str] | None = None, cwd: str = "/work"
    ) -> None:
        """A further bash. SandboxError if there is one of that name."""
        request = {"do": "open", "session": name, "env": dict(env or {}), "cwd": cwd}
        await self._ask(request, FILES_S)

    async def close_session(self, name: str) -> None:
        """Kills all that runs in it. SandboxError if there is none of that name."""
        await self._ask({"do": "close", "session": name}, FILES_S)

    async def interrupt(self, session: str = MAIN, seconds: float = 2.0) -> bool:
        """Ctrl-C for the session's command, and its end after `seconds`; False if none ran."""
        request = {"do": "interrupt", "session": session, "seconds": seconds}
        return bool((await self._ask(request, seconds + RUN_GRACE_S))["interrupted"])

    async def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Runs one process, outside every session; text is a command line for bash."""
        started, limit = time.monotonic(), self._limit(timeout)
        job = self.spawn(argv, cwd=cwd, env=env, timeout=limit, keep=True)
        async with self._bounded("exec", limit + RUN_GRACE_S):
            await job.write(stdin)
            job.close_stdin()
            return await job.result(started)

    def spawn(
        self,
        argv: Sequence[str] | str,
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        keep: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Job:
        """Starts one process, whose output comes as fast as `Job.receive` takes it.

        timeout: seconds, None for no limit. keep: only head and tail of its output come, at the
        end. terminal: (rows, columns) of one for it, instead of pipes.
        """
        words = ["bash", "-c", argv] if isinstance(argv, str) else list(argv)
        request = {"do": "exec", "job": f"job-{next(self._jobs)}", "argv": words, "cwd": cwd}
        request |= {"env": dict(env or {}), "timeout": timeout, "terminal": terminal}
        request["output_bytes"] = self._spec.output_bytes if keep else None
        return Job(self._machine.link.open(request, body=True), request, self._ask)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        if not path or "\0" in path or ".." in path.split("/"):
            raise ValueError(f"path {path!r} must name a file, without '..'")
        request = {"do": "read", "path": path, "max_bytes": max_bytes}
        sink = OutputSink(max_bytes)
        reply = await self._exchange(request, FILES_S, b"", sink)
        if "error" in reply:
            raise FileNotFoundError(f"{path!r} cannot be read as a regular file: {reply['error']}")
        return bytes(sink.data)

    async def write(self, files: Mapping[str, bytes]) -> None:
        for path in files:
            parts = path.split("/")
            if "\0" in path or any(part in ("", ".", "..") for part in parts):
                raise ValueError(f"path {path!r} must be relative to /work, without '.' and '..'")
        request = {"do": "write", "files": [(path, len(data)) for path, data in files.items()]}
        reply = await self._exchange(request, FILES_S, b"".join(files.values()))
        if "error" in reply:
            raise OSError(reply["errno"], f"cannot write into the sandbox: {reply['error']}")

    async def list(self, path: str = "/work") -> list[FileInfo]:
        """What is in a directory, at most MAX_ENTRIES. FileNotFoundError if it is none."""
        request = {"do": "list", "path": path, "max_entries": MAX_ENTRIES}
        sink = OutputSink(MAX_LISTING_BYTES)
        reply = await self._exchange(request, FILES_S, b"", sink)
        if "error" in reply:
            raise FileNotFoundError(f"{path!r} cannot be listed: {reply['error']}")
        return await self._made(lambda: [FileInfo(**each) for each in json.loads(sink.data)])

    async def pack(self, path: str) -> bytes:
        """A tar archive of a directory. What unpacks it must not believe it."""
        request = {"do": "pack", "path": path, "max_bytes": self._max_snapshot}
        return await self._archive(request)

    async def unpack(self, archive: bytes, path: str) -> None:
        """Unpacks a tar archive into a directory, with the agent's rights."""
        await self._ask({"do": "unpack", "path": path}, FILES_S, archive)

    async def snapshot(self) -> bytes:
        return await self._archive({"do": "snapshot", "max_bytes": self._max_snapshot})

    async def restore(self, snapshot: bytes) -> None:
        await self._ask({"do": "restore"}, FILES_S, snapshot)

    async def reset(self) -> None:
        await self._ask({"do": "reset"}, FILES_S)

    async def kill_processes(self) -> None:
        await self._ask({"do": "kill"}, FILES_S)

    async def stats(self) -> SandboxStats:
        reply = await self._ask({"do": "stats"}, FILES_S)
        return await self._made(lambda: SandboxStats(**reply))

    async def listen(self, port: int, serve: Callable[[Stream], Awaitable[None]]) -> None:
        """From now on, each connection to `port` of the sandbox's loopback is given to `serve`."""
        self._doors[port] = serve
        await self._ask({"do": "listen", "port": port}, FILES_S)

    async def connect(self, port: int) -> Stream:
        """A connection to the service that listens on `port` inside. SandboxLost; a port that
        nobody listens on shows as a stream that ends at once, with an "error" in its outcome."""
        return self._machine.link.open({"do": "connect", "port": port}, body=True)

    async def open_network(
        self, proxy: EgressProxy, port: int, serve: Callable[[Stream], Awaitable[None]]
    ) -> None:
        """From now on `proxy`, at `port` inside, is the way out."""
        self._proxy = proxy
        await self.listen(port, serve)

    def set_network(self, policy: EgressPolicy) -> None:
        """Another policy from now on; connections that it does not permit are cut.

        ValueError for a sandbox that was started without a network.
        """
        if self._proxy is None:
            raise ValueError(
                f"network {policy.mode!r}: the sandbox has none; start it with spec.network"
            )
        self._proxy.set_policy(policy)

    async def alive(self) -> bool:
        return await self._machine.alive()

    async def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        for task in self._serving:
            task.cancel()
        await self._machine.destroy()

    def _limit(self, timeout: float | None) -> float:
        limit = self._spec.command_seconds if timeout is None else timeout
        if limit <= 0:
            raise ValueError(f"timeout {limit} must be more than 0 seconds")
        return limit

    def _accept(self, stream: Stream, request: dict[str, Any]) -> None:
        serve = self._doors.get(request.get("port"))
        if serve is None:
            raise ValueError(f"nobody serves {request!r:.80}")
        task = asyncio.get_running_loop().create_task(_serve(serve, stream))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _archive(self, request: dict[str, Any]) -> bytes:
        sink = OutputSink(self._max_snapshot + wire.CHUNK)
        await self._ask(request, FILES_S, b"", sink)
        return bytes(sink.data)

    async def _ask(
        self,
        request: dict[str, Any],
        seconds: float,
        body: bytes = b"",
        sink: OutputSink | None = None,
    ) -> dict[str, Any]:
        """As `_exchange`, for requests whose failure is the sandbox's. Errors: SandboxError."""
        reply = await self._exchange(request, seconds, body, sink)
        if "error" in reply:
            raise SandboxError(f"sandbox cannot {request['do']}: {reply['error']}")
        return reply

    async def _exchange(
        self,
        request: dict[str, Any],
        seconds: float,
        body: bytes = b"",
        sink: OutputSink | None = None,
    ) -> dict[str, Any]:
        async with self._bounded(request["do"], seconds):
            return await _converse(self._machine.link, request, body, sink or OutputSink(0))

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str, seconds: float) -> AsyncIterator[None]:
        """Silence and nonsense mean that the sandbox is lost."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise await self._lost(f"no answer to {what!r} within {seconds:g} s") from None
        except SandboxLost as error:
            raise await self._lost(str(error)) from error

    async def _made(self, make: Callable[[], T]) -> T:
        """A result out of a reply, which must hold what it should."""
        try:
            return make()
        except (KeyError, TypeError, ValueError) as error:
            raise await self._lost(f"malformed reply: {error!r:.200}") from error

    async def _lost(self, reason: str) -> SandboxLost:
        """A machine that broke the protocol is not used again, even if it still breathes."""
        self._machine.link.fail(reason)
        await self._machine.destroy()
        words = self._machine.last_words().strip()
        return SandboxLost(f"{reason}{': ' + words if words else ''}")


async def _converse(
    link: Link, request: dict[str, Any], body: bytes, sink: OutputSink
) -> dict[str, Any]:
    stream = link.open(request, body=bool(body))
    try:
        if body:
            await stream.send(body, even_if_ended=False)
            stream.end()
        while (piece := await stream.receive()) is not None:
            sink.take(piece[1])
        return await stream.outcome()
    except asyncio.CancelledError:
        stream.abandon()
        raise


async def _serve(serve: Callable[[Stream], Awaitable[None]], stream: Stream) -> None:
    try:
        await serve(stream)
    except SandboxLost:
        pass  # whoever uses the sandbox is told
    finally:
        stream.end()
