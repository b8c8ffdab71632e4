"""The methods of clients and of their sandboxes, shared by the blocking and the asynchronous kind.

The blocking kind returns the documented value, the asynchronous kind an awaitable of it. Each
method raises the errors of the method of that name of `AsyncSandbox` or `SandboxPool`, and
PermissionError or QuotaExceeded if the token does not permit the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.sandbox.pool.api import StartRequest, State, Status
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.sdk import calls
from ale_jax.sandbox.sdk.calls import Call
from ale_jax.sandbox.service import uploads
from ale_jax.sandbox.spec import SandboxSpec


class ClientOperations:
    """Operations beyond a single sandbox. `_do` performs a call, `_then` applies a function to its
    result, and `_aside` calls a function that may take long."""

    def _do(self, call: Call) -> Any: ...

    def _then(self, result: Any, function) -> Any: ...

    def _aside(self, function, *arguments: Any) -> Any: ...

    def _box(self, status: Status) -> Any: ...

    def start_many(self, spec: SandboxSpec, count: int, spare: int = 0, **request: Any) -> Any:
        """Starts `count + spare` identical sandboxes; returns the first `count` that are ready."""
        call = calls.start_many(StartRequest(spec, **request), count, spare)
        return self._then(self._do(call), lambda all: [self._box(each) for each in all])

    def attach(self, id: str) -> Any:
        """A sandbox that was started elsewhere. SandboxGone if you have none with that id."""
        return self._then(self._do(calls.status(id)), self._box)

    def statuses(self) -> Any:
        """list[Status]: of your sandboxes; for an administrator, of everybody's."""
        return self._do(calls.statuses())

    def warm(self, spec: SandboxSpec, count: int) -> Any:
        """Keeps `count` sandboxes of `spec` ready on each node. Administrators only."""
        return self._do(calls.warm(spec, count))

    def nodes(self) -> Any:
        """list[NodeStatus]."""
        return self._do(calls.nodes())

    def stats(self) -> Any:
        """dict: your sandboxes by state, and the slots of all nodes."""
        return self._do(calls.stats())

    def usage(self) -> Any:
        """list[TenantUsage]: of your token; for an administrator, of all that have called."""
        return self._do(calls.usage())

    def events(self, after: int | None = None, limit: int = 500) -> Any:
        """EventsAnswer: what happened to your sandboxes after that event; None: the latest."""
        return self._do(calls.events(after, limit))


class BoxOperations:
    """One sandbox, for the client that started it or attached to it."""

    id: str
    spec: SandboxSpec
    _client: ClientOperations

    def _do(self, call: Call) -> Any:
        return self._client._do(call)

    def run(self, command: str, timeout: float | None = None, session: str = MAIN) -> Any:
        """ExecResult of a command in a session. timeout: seconds; None: the spec's."""
        return self._do(calls.run(self.id, command, timeout, session, self._limit(timeout)))

    def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> Any:
        """ProcessResult of a process outside every session; a string is a command line for bash."""
        process = calls.process(argv, timeout, stdin, cwd, env)
        return self._do(calls.exec(self.id, process, self._limit(timeout)))

    def open_session(
        self, name: str, env: Mapping[str, str] | None = None, cwd: str = "/work"
    ) -> Any:
        """Opens another bash session. SandboxError if the name is in use."""
        return self._do(calls.open_session(self.id, name, env, cwd))

    def close_session(self, name: str) -> Any:
        """Kills everything that runs in the session. SandboxError if there is no such session."""
        return self._do(calls.close_session(self.id, name))

    def interrupt(self, session: str = MAIN, seconds: float = 2.0) -> Any:
        """bool: sends Ctrl-C to the session's command; False if none was running."""
        return self._do(calls.interrupt(self.id, session, seconds))

    def begin(self, command: str, session: str = MAIN) -> Any:
        """Starts a command in a session, on a terminal. SandboxError if the session is busy."""
        return self._do(calls.begin(self.id, command, session))

    def send(self, text: str, session: str = MAIN) -> Any:
        """Types text into the command that `begin` started. SandboxError if none runs."""
        return self._do(calls.send(self.id, text, session))

    def expect(
        self, pattern: str | None = None, timeout: float | None = None, session: str = MAIN
    ) -> Any:
        """Expected: the output of that command up to a match of a regular expression; for None, up
        to its end. timeout: seconds; None: the spec's; afterwards it goes on. ValueError."""
        limit = self._limit(timeout)
        return self._do(calls.expect(self.id, pattern, timeout, session, limit))

    def read(self, path: str, max_bytes: int = 1 << 20) -> Any:
        """bytes: the beginning of a file. FileNotFoundError, ValueError."""
        return self._do(calls.read(self.id, path, max_bytes))

    def write(self, files: Mapping[str, bytes]) -> Any:
        """Writes files below /work. ValueError, OSError."""
        return self._do(calls.write(self.id, files))

    def list(self, path: str = "/work") -> Any:
        """list[FileInfo] of a directory. FileNotFoundError."""
        return self._do(calls.list_directory(self.id, path))

    def upload(self, directory: str | Path, path: str = "/work") -> Any:
        """Copies the contents of a local directory into a directory of the sandbox.

        ValueError, before anything is sent, if there is a link or a device among them.
        """
        archive = self._client._aside(uploads.pack, directory)
        return self._client._then(archive, lambda a: self.unpack(a, path))

    def unpack(self, archive: bytes, path: str = "/work") -> Any:
        """Unpacks a tar archive, without links and devices, into a directory. ValueError."""
        return self._do(calls.unpack(self.id, archive, path))

    def download(self, path: str, directory: str | Path, max_bytes: int = uploads.MAX_BYTES) -> Any:
        """Copies the contents of a directory of the sandbox into a local directory.

        The contents come from the agent and are not trusted: ValueError for links, devices,
        absolute paths, `..`, or more than `max_bytes`; nothing is written then.
        """
        archive, client = self._do(calls.pack(self.id, path)), self._client
        return client._then(
            archive, lambda a: client._aside(uploads.unpack, a, directory, max_bytes)
        )

    def snapshot(self) -> Any:
        """SnapshotInfo, whose id `start` and `restore` take."""
        return self._do(calls.snapshot(self.id))

    def restore(self, snapshot: str) -> Any:
        """Like `reset`, then restores the working files of that snapshot. ValueError."""
        return self._do(calls.restore(self.id, snapshot))

    def renew(self, seconds: float = 0.0) -> Any:
        """Status: from now, the sandbox lives for `seconds`; 0: as long as your token may have."""
        return self._do(calls.renew(self.id, seconds))

    def fork(self, count: int = 1) -> Any:
        """Starts `count` new sandboxes with the same working files."""
        forks = self._do(calls.fork(self.id, count))
        return self._client._then(forks, lambda all: [self._client._box(each) for each in all])

    def reset(self) -> Any:
        """Resets the sandbox: nothing runs, /work and /tmp are empty."""
        return self._do(calls.reset(self.id))

    def kill_processes(self) -> Any:
        """Kills everything that the agent started. Files are kept."""
        return self._do(calls.kill_processes(self.id))

    def status(self) -> Any:
        """Status."""
        return self._do(calls.status(self.id))

    def alive(self) -> Any:
        """bool."""
        return self._client._then(self.status(), lambda status: status.state is State.RUNNING)

    def _limit(self, timeout: float | None) -> float:
        return self.spec.command_seconds if timeout is None else timeout
