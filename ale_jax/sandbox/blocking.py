"""Sandboxes for threads: each call runs in one event loop of the process, and blocks until done."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from ale_jax.sandbox.api import ExecResult, Expected, ProcessResult
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.spec import SandboxSpec

T = TypeVar("T")


_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """The process-wide event loop, which runs until the process ends."""
    with _starting:  # the first threads may arrive together, and there must be one loop
        return _started_loop()


@functools.cache
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sandboxes", daemon=True).start()
    return loop


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs `coroutine` in the process-wide loop and blocks. Must not be called from a coroutine."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


@contextlib.contextmanager
def entered(manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """`manager`, entered and left in the process-wide loop."""
    value = wait_for(manager.__aenter__())
    try:
        yield value
    except BaseException as error:
        wait_for(manager.__aexit__(type(error), error, error.__traceback__))
        raise
    wait_for(manager.__aexit__(None, None, None))


class BlockingSandbox:
    """An `api.Sandbox` for one thread at a time; another thread may call `close`."""

    def __init__(self, sandbox: AsyncSandbox):
        self.later = sandbox  # the same sandbox, for coroutines in the process-wide loop

    def run(self, command: str, timeout: float | None = None, session: str = MAIN) -> ExecResult:
        return wait_for(self.later.run(command, timeout, session))

    def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Runs one process outside of all sessions. A string is run by bash as a command line."""
        return wait_for(self.later.exec(argv, timeout, stdin, cwd, env))

    def open_session(self, name: str, env: Mapping[str, str] | None = None, user: str = "") -> None:
        wait_for(self.later.open_session(name, env, user=user))

    def close_session(self, name: str) -> None:
        wait_for(self.later.close_session(name))

    def begin(self, command: str, session: str = MAIN) -> None:
        wait_for(self.later.begin(command, session))

    def send(self, text: str, session: str = MAIN) -> None:
        wait_for(self.later.send(text, session))

    def expect(
        self, pattern: str | None = None, timeout: float | None = None, session: str = MAIN
    ) -> Expected:
        return wait_for(self.later.expect(pattern, timeout, session))

    def interrupt(self, session: str = MAIN, seconds: float = 2.0) -> bool:
        return wait_for(self.later.interrupt(session, seconds))

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        return wait_for(self.later.read(path, max_bytes))

    def write(self, files: Mapping[str, bytes]) -> None:
        wait_for(self.later.write(files))

    def replace_directory(self, path: str, files: Mapping[str, bytes]) -> None:
        """As `AsyncSandbox.replace_directory`."""
        wait_for(self.later.replace_directory(path, files))

    def snapshot(self) -> bytes:
        return wait_for(self.later.snapshot())

    def restore(self, snapshot: bytes) -> None:
        wait_for(self.later.restore(snapshot))

    def reset(self) -> None:
        wait_for(self.later.reset())

    def kill_processes(self) -> None:
        wait_for(self.later.kill_processes())

    @property
    def spec(self) -> SandboxSpec:
        return self.later.spec

    @property
    def network(self) -> EgressPolicy:
        """The network policy that currently applies."""
        return self.later.network

    def set_network(self, policy: EgressPolicy) -> None:
        """As `AsyncSandbox.set_network`."""

        async def change() -> None:
            self.later.set_network(policy)

        wait_for(change())

    def relay(self, port: int, host: str, target: int) -> AbstractContextManager[None]:
        """As `AsyncSandbox.relay`."""
        return entered(self.later.relay(port, host, target))

    def alive(self) -> bool:
        return wait_for(self.later.alive())

    def close(self) -> None:
        wait_for(self.later.close())

    def __enter__(self) -> BlockingSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StartsBlocking:
    """Gives a runtime the blocking `start`, based on its coroutine `launch`."""

    launch: Callable[..., Coroutine[Any, Any, AsyncSandbox]]

    def start(self, spec, labels: Mapping[str, str]) -> BlockingSandbox:
        """Returns a working sandbox. Errors: SandboxStartError."""
        start = _Start(self.launch(spec, labels))
        try:
            return BlockingSandbox(wait_for(start.run()))
        except BaseException:  # such as KeyboardInterrupt; nothing else would close it
            wait_for(start.give_up())
            raise


class _Start:
    """A launch that can be given up at any time, whether or not it has begun."""

    def __init__(self, launch: Coroutine[Any, Any, AsyncSandbox]):
        self._launch = launch
        self._task: asyncio.Task[AsyncSandbox] | None = None

    async def run(self) -> AsyncSandbox:
        self._task = asyncio.get_running_loop().create_task(self._launch)
        return await self._task

    async def give_up(self) -> None:
        """Closes what was launched. The loop executes this after `run`, if `run` starts at all."""
        if self._task is None:
            self._launch.close()
            return
        with contextlib.suppress(Exception):  # a failed launch leaves nothing to close
            sandbox = await self._task
            await sandbox.close()
