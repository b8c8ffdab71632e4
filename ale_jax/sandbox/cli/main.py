"""`ale-sandbox`: runs one command of the command line. Errors are printed as one line with a
remedy."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import posixpath
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.cli import tables
from ale_jax.sandbox.cli.parser import TOKEN, make_parser, spec_of
from ale_jax.sandbox.sdk.client import AsyncSandboxClient, RemoteSandbox, SandboxClient
from ale_jax.sandbox.sdk.streams import AsyncTerminal

MAX_FILE = 64 << 20  # bytes that the service transfers at once
WORK = "/work"


def copy(client: SandboxClient, source: str, target: str) -> None:
    """Copies files in or out. ValueError unless exactly one is ID:PATH; OSError, SandboxError."""
    inside = [_split(text) for text in (source, target)]
    if sum(each is not None for each in inside) != 1:
        raise ValueError(f"cp {source!r} {target!r}: one of the two must be ID:PATH")
    if inside[0]:
        id, path = inside[0]
        _copy_out(client.attach(id), path, Path(target))
    else:
        id, path = inside[1]
        _copy_in(client.attach(id), Path(source), path)


def _split(text: str) -> tuple[str, str] | None:
    """Returns ID and path; None for a local path, which has no colon or a / before the first."""
    id, colon, path = text.partition(":")
    if not colon or "/" in id or not id:
        return None
    return id, path or WORK


def _copy_in(box: RemoteSandbox, source: Path, path: str) -> None:
    if source.is_dir():
        box.upload(source, path)
        return
    content = source.read_bytes()
    inside = posixpath.join(WORK, path)
    if path.endswith("/") or _is_directory(box, inside):
        inside = posixpath.join(inside, source.name)
    if not inside.startswith(f"{WORK}/"):
        raise ValueError(f"{path!r} is not below {WORK}: single files can be copied only there")
    box.write({inside.removeprefix(f"{WORK}/"): content})


def _copy_out(box: RemoteSandbox, path: str, target: Path) -> None:
    if _is_directory(box, path):
        box.download(path, target)
        return
    content = box.read(path, MAX_FILE)
    if len(content) == MAX_FILE:
        raise ValueError(f"{path!r} has {MAX_FILE} bytes or more: copy its directory")
    if target.is_dir():
        target = target / posixpath.basename(path)
    target.write_bytes(content)


def _is_directory(box: RemoteSandbox, path: str) -> bool:
    try:
        box.list(path)
    except FileNotFoundError:
        return False
    return True


LEAVE = b"\x1d"  # Ctrl-]
READ = 4096
LEFT = 0  # exit code if the user leaves before the command ends


def shell(url: str, token: str | None, id: str, command: str) -> int:
    """Returns the command's exit code. ValueError without a terminal; SandboxError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError("shell needs a terminal; type: ale-sandbox exec ID COMMAND")
    return asyncio.run(_attach(url, token, id, command))


async def _attach(url: str, token: str | None, id: str, command: str) -> int:
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


FAILED = 1
FAILED_EXEC = 125  # as in docker, since 1 could be the command's own exit code
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. For `exec` and `shell` it is the command's, or FAILED_EXEC."""
    arguments = make_parser().parse_args(argv)
    try:
        if arguments.command in LOCAL:
            return LOCAL[arguments.command](arguments)
        with SandboxClient(arguments.url, os.environ.get(TOKEN)) as client:
            return REMOTE[arguments.command](client, arguments)
    except (SandboxError, ValueError, OSError) as error:
        text = " ".join(str(error).split())
        print(f"ale-sandbox {arguments.command}: {tables.printable(text)}", file=sys.stderr)
        return FAILED_EXEC if arguments.command in ("exec", "shell") else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _start(client: SandboxClient, arguments: argparse.Namespace) -> int:
    box = client.start(
        spec_of(arguments),
        snapshot=arguments.snapshot,
        idle_seconds=arguments.idle,
        deadline_seconds=arguments.deadline,
    )
    print(box.id)
    return 0


def _exec(client: SandboxClient, arguments: argparse.Namespace) -> int:
    words = arguments.words
    argv = words[0] if len(words) == 1 else words
    stdin = sys.stdin.buffer.read() if arguments.stdin else b""
    box = client.attach(arguments.id)
    with box.spawn(argv, timeout=arguments.timeout, stdin=stdin, cwd=arguments.cwd) as output:
        for kind, data in output:
            stream = sys.stdout if kind == "stdout" else sys.stderr
            stream.buffer.write(data)
            stream.buffer.flush()
    return output.exit_code


def _shell(arguments: argparse.Namespace) -> int:
    return shell(arguments.url, os.environ.get(TOKEN), arguments.id, arguments.run)


def _copy(client: SandboxClient, arguments: argparse.Namespace) -> int:
    copy(client, arguments.source, arguments.target)
    return 0


def _list(client: SandboxClient, arguments: argparse.Namespace) -> int:
    tables.sandboxes(client.statuses())
    return 0


def _stats(client: SandboxClient, arguments: argparse.Namespace) -> int:
    tables.nodes(client.nodes())
    states = client.stats()["sandboxes"].items()
    tables.show("", ("sandboxes", "count"), states)
    return 0


def _usage(client: SandboxClient, arguments: argparse.Namespace) -> int:
    tables.usages(client.usage())
    return 0


def _renew(client: SandboxClient, arguments: argparse.Namespace) -> int:
    client.attach(arguments.id).renew(arguments.seconds)
    return 0


def _snapshot(client: SandboxClient, arguments: argparse.Namespace) -> int:
    print(client.attach(arguments.id).snapshot().id)
    return 0


def _remove(client: SandboxClient, arguments: argparse.Namespace) -> int:
    ids = arguments.ids
    if arguments.all:
        ids = [status.id for status in client.statuses() if status.cause is None]
    elif not ids:
        raise ValueError("name the sandboxes, or use --all")
    for id in ids:
        client.attach(id).close()
    return 0


# The next four import modules that take longer to load than most commands take to run.
def _serve(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import run_service

    return run_service(arguments)


def _stop_node(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import stop_node

    return stop_node(arguments.state)


def _images(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import images

    return images(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import doctor

    return doctor(spec_of(arguments), arguments.url, os.environ.get(TOKEN))


LOCAL: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "shell": _shell,
    "stop-node": _stop_node,
    "images": _images,
    "doctor": _doctor,
}
REMOTE: Mapping[str, Callable[[SandboxClient, argparse.Namespace], int]] = {
    "start": _start,
    "exec": _exec,
    "cp": _copy,
    "ps": _list,
    "stats": _stats,
    "usage": _usage,
    "renew": _renew,
    "snapshot": _snapshot,
    "rm": _remove,
}


if __name__ == "__main__":
    sys.exit(main())
