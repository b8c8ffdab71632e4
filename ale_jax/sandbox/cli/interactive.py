"""Commands whose input comes while their output is shown: `ale-sandbox shell` and `exec -i`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.cli.parser import Connection
from ale_jax.sandbox.sdk.async_client import AsyncSandboxClient
from ale_jax.sandbox.sdk.client import Pipes, RemoteSandbox
from ale_jax.sandbox.sdk.streams import AsyncTerminal

LEAVE = b"\x1d"  # Ctrl-]
READ = 4096
LEFT = 0  # exit code if the user leaves before the command ends


def shell(service: Connection, id: str, command: str) -> int:
    """Returns the command's exit code. ValueError without a terminal; SandboxError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError("shell needs a terminal; type: ale-sandbox exec ID COMMAND")
    return asyncio.run(_attach(service, id, command))


async def _attach(service: Connection, id: str, command: str) -> int:
    async with AsyncSandboxClient(**service) as client:
        box = await client.attach(id)
        columns, rows = shutil.get_terminal_size()
        async with box.terminal(command, rows, columns) as terminal:
            with _raw(sys.stdin.fileno()):
                return await _converse(terminal)


async def _converse(terminal: AsyncTerminal) -> int:
    shown = asyncio.ensure_future(_show(terminal))
    typed = asyncio.ensure_future(_type(terminal))
    await asyncio.wait((shown, typed), return_when=asyncio.FIRST_COMPLETED)
    typed.cancel()
    if shown.done():
        shown.result()
        assert terminal.exit_code is not None
        return terminal.exit_code
    shown.cancel()
    return LEFT


async def _show(terminal: AsyncTerminal) -> None:
    async for data in terminal:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


async def _type(terminal: AsyncTerminal) -> None:
    """Returns when the user leaves."""
    loop, keys = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
    keyboard = sys.stdin.fileno()
    loop.add_reader(keyboard, lambda: keys.put_nowait(os.read(keyboard, READ)))
    loop.add_signal_handler(signal.SIGWINCH, lambda: keys.put_nowait(None))
    try:
        while (data := await keys.get()) != b"":
            if data is None:
                columns, rows = shutil.get_terminal_size()
                await terminal.resize(rows, columns)
            elif LEAVE in data:
                return
            else:
                await terminal.send(data)
    finally:
        loop.remove_reader(keyboard)
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


PIECE = 32 << 10
TIMED_OUT = 124


def pipe(box: RemoteSandbox, command: str, user: str, timeout: float | None) -> int:
    """Connects standard input and output with a command; returns its exit code. SandboxError."""
    expired = threading.Event()
    with box.pipes(command, user) as pipes:
        # Daemons, since a read of standard input cannot be interrupted.
        threading.Thread(target=_feed, args=(pipes,), daemon=True).start()
        if timeout is not None:
            threading.Thread(target=_expire, args=(pipes, timeout, expired), daemon=True).start()
        try:
            for kind, data in pipes:
                show(kind, data)
        except SandboxLost:
            if not expired.is_set():
                raise
            return TIMED_OUT
    assert pipes.exit_code is not None
    return pipes.exit_code


def show(kind: str, data: bytes) -> None:
    """Writes a piece of a command's output to this process's stdout or stderr."""
    stream = sys.stdout if kind == "stdout" else sys.stderr
    stream.buffer.write(data)
    stream.buffer.flush()


def _feed(pipes: Pipes) -> None:
    with contextlib.suppress(SandboxError):  # the command has ended
        while data := os.read(sys.stdin.fileno(), PIECE):
            pipes.send(data)
        pipes.send(b"")


def _expire(pipes: Pipes, seconds: float, expired: threading.Event) -> None:
    time.sleep(seconds)
    expired.set()
    pipes.close()
