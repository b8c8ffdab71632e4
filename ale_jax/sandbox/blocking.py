"""Sandboxes for threads: each call runs in one event loop of the process, and blocks until done."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.renewal import RenewableSandbox
from ale_jax.sandbox.spec import SandboxSpec

P = ParamSpec("P")
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
    os.register_at_fork(after_in_child=_started_loop.cache_clear)  # a child has no such thread
    return loop


def wait_for(
    coroutine: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[object]] | None = None
) -> T:
    """Runs `coroutine` in the process-wide loop and blocks. Must not be called from a coroutine.

    If this thread is interrupted meanwhile (Ctrl-C), the coroutine is cancelled, and has ended when
    KeyboardInterrupt is raised. undo: called with its result if it was faster.
    """
    call, loop = _Call(coroutine), _loop()
    try:
        return asyncio.run_coroutine_threadsafe(call.run(), loop).result()
    except Exception:
        raise  # it is the coroutine's
    except BaseException:
        asyncio.run_coroutine_threadsafe(call.give_up(undo), loop).result()
        raise


class _Call(Generic[T]):
    """A coroutine that can be given up at any time, whether or not it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]):
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> T:
        self._task = asyncio.current_task()
        return await self._coroutine

    async def give_up(self, undo: Callable[[T], Awaitable[object]] | None) -> None:
        """The loop executes this after `run` has begun, if that begins at all."""
        if self._task is None:
            self._coroutine.close()
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if undo is not None and not self._task.cancelled() and self._task.exception() is None:
            await undo(self._task.result())


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Returns a method that calls the asynchronous one of that name of `self.later`, and blocks
    until it is done. Arguments, result and documentation are those of `method`."""

    @functools.wraps(method)
    def wait(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        run: Callable[P, Coroutine[Any, Any, T]] = getattr(self.later, method.__name__)
        return wait_for(run(*arguments, **named))

    return cast(Callable[Concatenate[Any, P], T], wait)


def iterated(pieces: AsyncIterable[T]) -> Iterator[T]:
    """Yields what `pieces` yields in the process-wide loop."""
    iterator = aiter(pieces)

    async def following() -> tuple[T] | None:
        async for piece in iterator:
            return (piece,)
        return None

    while (piece := wait_for(following())) is not None:
        yield piece[0]


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

    def __init__(self, sandbox: RenewableSandbox):
        self.later = sandbox  # the same sandbox, for coroutines in the process-wide loop

    run = blocking(AsyncSandbox.run)
    exec = blocking(AsyncSandbox.exec)
    start_job = blocking(AsyncSandbox.start_job)
    jobs = blocking(AsyncSandbox.jobs)
    job = blocking(AsyncSandbox.job)
    end_job = blocking(AsyncSandbox.end_job)
    open_session = blocking(AsyncSandbox.open_session)
    close_session = blocking(AsyncSandbox.close_session)
    begin = blocking(AsyncSandbox.begin)
    send = blocking(AsyncSandbox.send)
    expect = blocking(AsyncSandbox.expect)
    interrupt = blocking(AsyncSandbox.interrupt)
    read = blocking(AsyncSandbox.read)
    write = blocking(AsyncSandbox.write)
    replace_directory = blocking(AsyncSandbox.replace_directory)
    restore = blocking(AsyncSandbox.restore)
    reset = blocking(AsyncSandbox.reset)
    renew = blocking(RenewableSandbox.renew)
    kill_processes = blocking(AsyncSandbox.kill_processes)
    alive = blocking(AsyncSandbox.alive)
    close = blocking(AsyncSandbox.close)
    snapshot = blocking(AsyncSandbox.snapshot)

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

    def __enter__(self) -> BlockingSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StartsBlocking:
    """Gives a runtime the blocking `start`, based on its coroutine `launch`."""

    launch: Callable[..., Coroutine[Any, Any, RenewableSandbox]]

    def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> BlockingSandbox:
        """Returns a working sandbox. Errors: SandboxStartError."""
        return BlockingSandbox(wait_for(self.launch(spec, labels), AsyncSandbox.close))
