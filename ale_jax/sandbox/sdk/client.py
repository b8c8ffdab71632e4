"""Clients of the service for threads: `with SandboxClient(url).start(spec) as box: box.run("ls")`.

Each is an asynchronous client (`async_client.py`) whose methods block until they are done.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Self, Unpack

from ale_jax.sandbox.blocking import blocking, entered, iterated, wait_for
from ale_jax.sandbox.sdk.async_client import (
    AsyncRemoteSandbox,
    AsyncSandboxClient,
    StartOptions,
    close_all,
)
from ale_jax.sandbox.sdk.streams import AsyncOutput, AsyncPipes, AsyncTerminal, Piece
from ale_jax.sandbox.spec import SandboxSpec


class SandboxClient:
    """An `AsyncSandboxClient` for threads. Several may use it at once."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        verify: ssl.SSLContext | bool = True,
        in_clear: bool = False,
    ):
        self.later = AsyncSandboxClient(url, token, verify, in_clear)

    statuses = blocking(AsyncSandboxClient.statuses)
    warm = blocking(AsyncSandboxClient.warm)
    nodes = blocking(AsyncSandboxClient.nodes)
    stats = blocking(AsyncSandboxClient.stats)
    usage = blocking(AsyncSandboxClient.usage)
    events = blocking(AsyncSandboxClient.events)
    close = blocking(AsyncSandboxClient.close)

    def start(self, spec: SandboxSpec, **options: Unpack[StartOptions]) -> RemoteSandbox:
        """Returns a running sandbox. Errors: SandboxStartError, PoolFull, ValueError."""
        starting = self.later.start(spec, **options).started()
        return RemoteSandbox(wait_for(starting, AsyncRemoteSandbox.close))

    def start_many(
        self, spec: SandboxSpec, count: int, spare: int = 0, **options: Unpack[StartOptions]
    ) -> list[RemoteSandbox]:
        """Starts `count + spare` identical sandboxes; returns the first `count` that are ready."""
        boxes = wait_for(self.later.start_many(spec, count, spare, **options), close_all)
        return [RemoteSandbox(box) for box in boxes]

    def attach(self, id: str) -> RemoteSandbox:
        """Returns a sandbox that was started elsewhere. SandboxGone if you have none with that
        id."""
        return RemoteSandbox(wait_for(self.later.attach(id)))

    def __enter__(self) -> SandboxClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RemoteSandbox:
    """An `AsyncRemoteSandbox` for threads. Leaving its `with` block stops it."""

    def __init__(self, later: AsyncRemoteSandbox):
        self.later = later
        self.id, self.spec = later.id, later.spec

    run = blocking(AsyncRemoteSandbox.run)
    exec = blocking(AsyncRemoteSandbox.exec)
    start_job = blocking(AsyncRemoteSandbox.start_job)
    jobs = blocking(AsyncRemoteSandbox.jobs)
    job = blocking(AsyncRemoteSandbox.job)
    end_job = blocking(AsyncRemoteSandbox.end_job)
    open_session = blocking(AsyncRemoteSandbox.open_session)
    close_session = blocking(AsyncRemoteSandbox.close_session)
    interrupt = blocking(AsyncRemoteSandbox.interrupt)
    begin = blocking(AsyncRemoteSandbox.begin)
    send = blocking(AsyncRemoteSandbox.send)
    expect = blocking(AsyncRemoteSandbox.expect)
    read = blocking(AsyncRemoteSandbox.read)
    write = blocking(AsyncRemoteSandbox.write)
    replace_directory = blocking(AsyncRemoteSandbox.replace_directory)
    list = blocking(AsyncRemoteSandbox.list)
    upload = blocking(AsyncRemoteSandbox.upload)
    unpack = blocking(AsyncRemoteSandbox.unpack)
    download = blocking(AsyncRemoteSandbox.download)
    snapshot = blocking(AsyncRemoteSandbox.snapshot)
    restore = blocking(AsyncRemoteSandbox.restore)
    renew = blocking(AsyncRemoteSandbox.renew)
    reset = blocking(AsyncRemoteSandbox.reset)
    replace_machine = blocking(AsyncRemoteSandbox.replace_machine)
    kill_processes = blocking(AsyncRemoteSandbox.kill_processes)
    status = blocking(AsyncRemoteSandbox.status)
    alive = blocking(AsyncRemoteSandbox.alive)
    close = blocking(AsyncRemoteSandbox.close)

    def fork(self, count: int = 1) -> Sequence[RemoteSandbox]:
        """Starts `count` new sandboxes with the same working files."""
        return [RemoteSandbox(each) for each in wait_for(self.later.fork(count), close_all)]

    def spawn(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> Output:
        """Starts a process and streams its output. timeout: seconds; None: no limit."""
        output = self.later.spawn(argv, timeout, stdin, cwd, env, user)
        return Output(wait_for(output.__aenter__()))

    def terminal(
        self, command: str = "bash -i", rows: int = 24, columns: int = 80, user: str = ""
    ) -> Terminal:
        """Runs a bash command on a terminal."""
        return Terminal(self.later.terminal(command, rows, columns, user))

    def pipes(self, command: str, user: str = "") -> Pipes:
        """Runs a bash command whose input is sent while its output arrives."""
        return Pipes(self.later.pipes(command, user))

    def relay(self, port: int, host: str, target: int) -> AbstractContextManager[None]:
        """As `AsyncRemoteSandbox.relay`."""
        return entered(self.later.relay(port, host, target))

    def forward(self, port: int, local: int = 0) -> AbstractContextManager[int]:
        """As `AsyncRemoteSandbox.forward`."""
        return entered(self.later.forward(port, local))

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Output:
    """An `AsyncOutput` for threads, whose process has been started."""

    def __init__(self, later: AsyncOutput):
        self.later = later
        self._pieces = iterated(later)

    close = blocking(AsyncOutput.close)

    @property
    def exit_code(self) -> int | None:
        return self.later.exit_code

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Terminal:
    """An `AsyncTerminal` for threads: another one may call `send` and `resize` while one reads."""

    def __init__(self, later: AsyncTerminal):
        self.later = later

    send = blocking(AsyncTerminal.send)
    resize = blocking(AsyncTerminal.resize)
    close = blocking(AsyncTerminal.close)

    @property
    def exit_code(self) -> int | None:
        return self.later.exit_code

    def __iter__(self) -> Iterator[bytes]:
        return iterated(self.later)

    def __enter__(self) -> Self:
        wait_for(self.later.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        wait_for(self.later.__aexit__(None, None, None))


class Pipes:
    """An `AsyncPipes` for threads: another one may call `send` and `close` while one reads."""

    def __init__(self, later: AsyncPipes):
        self.later = later

    send = blocking(AsyncPipes.send)
    close = blocking(AsyncPipes.close)

    @property
    def exit_code(self) -> int | None:
        return self.later.exit_code

    def __iter__(self) -> Iterator[Piece]:
        return iterated(self.later)

    def __enter__(self) -> Self:
        wait_for(self.later.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        wait_for(self.later.__aexit__(None, None, None))
