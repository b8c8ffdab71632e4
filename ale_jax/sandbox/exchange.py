"""Requests to a runner and their outcomes, for files and processes. If a runner gives an invalid
answer or none at all, the sandbox is lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ale_jax.sandbox.api import FileInfo, ProcessResult, SandboxError, SandboxLost
from ale_jax.sandbox.link import Link, Stream
from ale_jax.sandbox.runner import wire
from ale_jax.sandbox.runner.usage import Usage
from ale_jax.sandbox.vitals import Vitals, time_to_answer


class OutputSink:
    """Collects data up to a limit, which an intact runner never exceeds. Errors: SandboxLost."""

    def __init__(self, max_bytes: int, on_data: Callable[[bytes], None] | None = None):
        self._buffer = io.BytesIO()
        self._max_bytes, self._on_data = max_bytes, on_data

    @property
    def data(self) -> bytes:
        return self._buffer.getvalue()  # without a copy, unlike the bytes of a bytearray

    def take(self, data: bytes) -> None:
        if self._buffer.tell() + len(data) > self._max_bytes:
            raise SandboxLost(f"the runner sent more than the {self._max_bytes} bytes asked for")
        self._buffer.write(data)
        if self._on_data:
            self._on_data(data)


def join(data: bytes, head: int, omitted: int) -> str:
    """A command's output as text, with a note where its middle was left out."""
    if not omitted:
        return data.decode("utf-8", "replace")
    first, last = data[:head], data[head:]
    gap = f"\n[... {omitted} bytes omitted ...]\n"
    return first.decode("utf-8", "replace") + gap + last.decode("utf-8", "replace")


T = TypeVar("T")


class Machine(Protocol):
    """What a runtime starts: isolated processes, one of which is the runner."""

    link: Link

    async def alive(self) -> bool: ...

    async def destroy(self) -> None:
        """Stops it and frees its resources, or leaves it to the reaper. May be called again."""

    def vitals(self) -> Vitals | None:
        """Of its runner; None if it is not visible from this host, or has ended."""

    def usage(self) -> Usage:
        """Usage as measured by the host; empty where the runner can read it itself."""

    def last_words(self) -> str:
        """The end of its standard error, available once it is destroyed."""


class Exchange:
    """Sends requests to the runner of one machine. Time in which the runner waits for a CPU does
    not count as silence."""

    def __init__(self, machine: Machine):
        self._machine = machine

    async def _ask(
        self,
        request: dict[str, Any],
        seconds: float,
        body: Sequence[bytes] = (),
        sink: OutputSink | None = None,
    ) -> dict[str, Any]:
        """As `_exchange`, but raises SandboxError if the outcome is an error."""
        reply = await self._exchange(request, seconds, body, sink)
        if "error" in reply:
            raise SandboxError(f"sandbox cannot {request['do']}: {reply['error']}")
        return reply

    async def _exchange(
        self,
        request: dict[str, Any],
        seconds: float,
        body: Sequence[bytes] = (),
        sink: OutputSink | None = None,
    ) -> dict[str, Any]:
        async with self._bounded(request["do"], seconds):
            return await _converse(self._machine.link, request, body, sink or OutputSink(0))

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str, seconds: float) -> AsyncIterator[None]:
        """Turns a timeout or a protocol error into the loss of the sandbox."""
        machine = self._machine
        try:
            async with time_to_answer(seconds, self._machine.vitals):
                yield
        except TimeoutError:
            if machine is not self._machine:
                raise SandboxError(f"the sandbox was reset during {what!r}") from None
            raise await self._lost(f"no answer to {what!r} within {seconds:g} s") from None
        except SandboxLost as error:
            if machine is not self._machine:
                raise SandboxError(f"the sandbox was reset during {what!r}") from error
            raise await self._lost(str(error)) from error

    async def _made(self, make: Callable[[], T]) -> T:
        """Returns the result of `make`. If it fails on a malformed reply, the sandbox is lost."""
        try:
            return make()
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise await self._lost(f"malformed reply: {error!r:.200}") from error

    async def _lost(self, reason: str) -> SandboxLost:
        """Destroys the machine and returns the error to raise. A machine that broke the protocol is
        never used again, even if it still runs."""
        self._machine.link.fail(reason)
        await self._machine.destroy()
        words = self._machine.last_words().strip()
        return SandboxLost(f"{reason}{': ' + words if words else ''}")


async def _converse(
    link: Link, request: dict[str, Any], body: Sequence[bytes], sink: OutputSink
) -> dict[str, Any]:
    stream = link.open(request, body=any(body))
    try:
        if any(body):
            for part in body:
                await stream.send(part, even_if_ended=False)
            stream.end()
        while (piece := await stream.receive()) is not None:
            sink.take(piece[1])
        return await stream.outcome()
    except asyncio.CancelledError:
        stream.cancel()
        raise


FILES_S = 30.0
# On top of a command's timeout: the time that the runner may need to kill all agent processes.
RUN_GRACE_S = 15.0
# What the agent may cause by how it leaves its files.
ERRORS_OF_FILES = {
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    *(errno.EBUSY, errno.ENOTEMPTY, errno.ENXIO, errno.ENODEV, errno.EXDEV, errno.ETXTBSY),
    errno.EAGAIN,  # a lease (F_SETLEASE) of a process that does not give it up
}
MAX_ENTRIES = 10_000
MAX_LISTING_BYTES = 8 << 20


class FileCalls(Exchange):
    """The calls that concern files. max_snapshot: maximum size of an archive in bytes."""

    def __init__(self, machine: Machine, max_snapshot: int):
        super().__init__(machine)
        self._max_snapshot = max_snapshot

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        if not path or "\0" in path or ".." in path.split("/"):
            raise ValueError(f"path {path!r} must name a file, without '..'")
        request = {"do": "read", "path": path, "max_bytes": max_bytes}
        sink = OutputSink(max_bytes)
        reply = await self._exchange(request, FILES_S, (), sink)
        if "error" in reply:
            await self._agents_error(reply)
            raise FileNotFoundError(f"{path!r} cannot be read as a regular file: {reply['error']}")
        return sink.data

    async def write(self, files: Mapping[str, bytes]) -> None:
        await self._write({"do": "write"}, files, "/work")

    async def replace_directory(self, path: str, files: Mapping[str, bytes]) -> None:
        """Makes `path` (absolute) a directory that contains only `files` (paths relative to it),
        and that only the agent's user may enter.

        Kills the agent's processes, and removes whatever is at or in the way of `path`.

        Errors: as `write`; OSError for a path that is not writable.
        """
        plain = path.startswith("/") and posixpath.normpath(path) == path and "\0" not in path
        if not plain or path.startswith("//") or path == "/":
            raise ValueError(f"directory {path!r} must be absolute and below /, without '..'")
        await self._write({"do": "replace", "path": path}, files, path)

    async def _write(self, request: dict[str, Any], files: Mapping[str, bytes], to: str) -> None:
        for path in files:
            parts = path.split("/")
            if "\0" in path or any(part in ("", ".", "..") for part in parts):
                raise ValueError(f"path {path!r} must be relative to {to}, without '.' and '..'")
        request |= {"files": [(path, len(data)) for path, data in files.items()]}
        reply = await self._exchange(request, FILES_S, list(files.values()))
        if "error" in reply:
            number = await self._agents_error(reply)
            raise OSError(number, f"cannot write into the sandbox: {reply['error']}")

    async def _agents_error(self, reply: Mapping[str, Any]) -> int:
        """The error number of a failed reply. SandboxLost if not the agent's files, but the runner
        itself must be the reason: such a sandbox would fail in the next episode, too."""
        number = reply.get("errno")
        if not isinstance(number, int) or number not in ERRORS_OF_FILES:
            raise await self._lost(f"the runner cannot work: {reply['error']} ({number})")
        return number

    async def list(self, path: str = "/work") -> list[FileInfo]:
        """Lists a directory, at most MAX_ENTRIES entries and MAX_LISTING_BYTES of JSON.

        Errors: FileNotFoundError if it is not one, or any part of the path is a symbolic link.
        """
        limits = {"max_entries": MAX_ENTRIES, "max_bytes": MAX_LISTING_BYTES}
        sink = OutputSink(MAX_LISTING_BYTES)
        reply = await self._exchange({"do": "list", "path": path, **limits}, FILES_S, (), sink)
        if "error" in reply:
            await self._agents_error(reply)
            raise FileNotFoundError(f"{path!r} cannot be listed: {reply['error']}")
        return await self._made(lambda: [FileInfo(**each) for each in json.loads(sink.data)])

    async def pack(self, path: str, max_bytes: int | None = None) -> bytes:
        """Returns a tar archive of a directory. Its contents are untrusted. max_bytes: SandboxError
        if the archive is larger."""
        return await self._archive(
            {"do": "pack", "path": path, "max_bytes": self._at_most(max_bytes)}
        )

    async def unpack(self, archive: bytes, path: str) -> None:
        """Unpacks a tar archive into a directory, with the agent's rights."""
        await self._ask({"do": "unpack", "path": path}, FILES_S, [archive])

    async def snapshot(self, max_bytes: int | None = None) -> bytes:
        """As `api.Sandbox.snapshot`. max_bytes: SandboxError if the archive is larger."""
        return await self._archive({"do": "snapshot", "max_bytes": self._at_most(max_bytes)})

    def _at_most(self, max_bytes: int | None) -> int:
        return self._max_snapshot if max_bytes is None else min(max_bytes, self._max_snapshot)

    async def restore(self, snapshot: bytes) -> None:
        await self._ask({"do": "restore"}, FILES_S, [snapshot])

    async def _renewed(self, request: dict[str, Any]) -> None:
        """A reset. SandboxLost if the sandbox is not as at its start then."""
        reply = await self._exchange(request, FILES_S)
        if "error" in reply:
            raise await self._lost(f"sandbox cannot be reset: {reply['error']}")

    async def _archive(self, request: dict[str, Any]) -> bytes:
        sink = OutputSink(request["max_bytes"] + wire.CHUNK)
        await self._ask(request, FILES_S, (), sink)
        return sink.data


SIGNAL_S = 30.0


class Made(Protocol):
    """`Exchange._made`."""

    def __call__(self, make: Callable[[], T]) -> Awaitable[T]: ...


class SandboxProcess:
    """A process started by `AsyncSandbox.spawn`. `kill` also kills everything that it started."""

    def __init__(
        self,
        stream: Stream,
        request: dict[str, Any],
        ask: Callable[..., Awaitable[dict]],
        made: Made,
    ):
        """ask, made: those of its `Exchange`."""
        self.name: str = request["job"]
        self._stream, self._ask, self._made = stream, ask, made

    async def write(self, data: bytes) -> None:
        """Writes to its standard input, and waits while the process does not read. Empty data
        closes it."""
        if data:
            await self._stream.send(data, even_if_ended=False)
        else:
            self.close_stdin()

    def close_stdin(self) -> None:
        self._stream.end()

    async def receive(self) -> tuple[str, bytes] | None:
        """The next output and its source, "stdout" or "stderr"; None when the process has ended."""
        piece = await self._stream.receive()
        if piece is None:
            return None
        kind, data = piece
        return ("stderr" if kind == wire.ERROR else "stdout"), data

    async def wait(self) -> int:
        """Waits for its end and returns its exit code. Drops output that was not received.

        Errors: SandboxError if it could not be started, SandboxLost.
        """
        outcome = await self._outcome()
        return await self._made(lambda: int(outcome["exit_code"]))

    async def signal(self, number: int) -> None:
        """Sends a signal to its process group. SandboxError if it has ended."""
        await self._ask({"do": "signal", "job": self.name, "signal": number}, SIGNAL_S)

    async def kill(self) -> None:
        """Kills it and everything that it started. SandboxError if it has ended."""
        await self.signal(9)

    async def resize(self, rows: int, columns: int) -> None:
        """Resizes its terminal, if it has one."""
        request = {"do": "resize", "job": self.name, "rows": rows, "columns": columns}
        await self._ask(request, SIGNAL_S)

    async def communicate(self, stdin: bytes, max_bytes: int) -> tuple[list[bytes], dict[str, Any]]:
        """For a job with `keep`: writes all of its standard input, and returns what `result_of`
        takes. max_bytes: of standard output and of standard error. Errors: as of `wait`."""
        sinks = {"stdout": OutputSink(max_bytes), "stderr": OutputSink(max_bytes)}
        try:
            await self.write(stdin)
            self.close_stdin()
            while (piece := await self.receive()) is not None:
                source, data = piece
                sinks[source].take(data)
            outcome = await self._outcome()
        except asyncio.CancelledError:
            self._stream.cancel()
            raise
        return [sink.data for sink in sinks.values()], outcome

    async def _outcome(self) -> dict[str, Any]:
        outcome = await self._stream.outcome()
        self._stream.end()
        if "error" in outcome:
            raise SandboxError(f"sandbox cannot start a process: {outcome['error']}")
        return outcome


def result_of(
    outputs: Sequence[bytes], outcome: Mapping[str, Any], seconds: float
) -> ProcessResult:
    """For `Exchange._made`, since the outcome may be malformed."""
    kept = [(int(head), int(omitted)) for head, omitted in outcome["kept"]]
    stdout, stderr = (join(data, *each) for data, each in zip(outputs, kept, strict=True))
    return ProcessResult(
        stdout,
        stderr,
        exit_code=int(outcome["exit_code"]),
        timed_out=bool(outcome["timed_out"]),
        omitted_bytes=sum(omitted for _, omitted in kept),
        seconds=seconds,
    )
