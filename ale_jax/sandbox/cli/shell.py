"""`ale-sandbox shell`: the local terminal, in raw mode, is the sandbox's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from ale_jax.sandbox.sdk.async_client import AsyncSandboxClient
from ale_jax.sandbox.sdk.terminals import AsyncTerminal

LEAVE = b"\x1d"  # Ctrl-]
READ = 4096
LEFT = 0  # exit code of whoever left before the command ended


def shell(url: str, token: str | None, id: str, command: str) -> int:
    """The command's exit code. Errors: ValueError if this is no terminal; SandboxError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError("shell needs a terminal; type: ale-sandbox exec ID COMMAND")
    return asyncio.run(_shell(url, token, id, command))


async def _shell(url: str, token: str | None, id: str, command: str) -> int:
    async with AsyncSandboxClient(url, token) as client:
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
        return terminal.exit_code
    shown.cancel()
    return LEFT


async def _show(terminal: AsyncTerminal) -> None:
    async for data in terminal:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


async def _type(terminal: AsyncTerminal) -> None:
    """Returns when the user leaves."""
    loop, keys = asyncio.get_running_loop(), asyncio.Queue()
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
