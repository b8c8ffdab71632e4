"""`ale-agent`: runs one command of the command line. Errors are one line with a remedy."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ale_jax.agent.assistant.assistant import Assistant, Setup
from ale_jax.agent.assistant.clipping import printable
from ale_jax.agent.assistant.endpoint import EndpointError
from ale_jax.agent.assistant.events import Ended, Started
from ale_jax.agent.assistant.exit_codes import FAILED, FINISHED, INTERRUPTED, code_of
from ale_jax.agent.assistant.parser import parse, sessions_of, settings_of
from ale_jax.agent.assistant.sessions import SessionLog, cwd_of
from ale_jax.agent.assistant.stream_json import StreamJson

if TYPE_CHECKING:
    from ale_jax.agent.assistant.terminal import Terminal

MAX_REQUEST_CHARS = 1 << 18  # so that it fits in a line of the log


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        return COMMANDS[arguments.command](arguments)
    except (ValueError, OSError, EndpointError) as error:
        told = printable(" ".join(str(error).split()))
        print(f"ale-agent {arguments.command}: {told}", file=sys.stderr)
        return FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


def _list(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("session", "changed", "directory", "request", box=None, pad_edge=False)
    for info in sessions_of(arguments).list():
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.changed))
        table.add_row(*(Text(printable(each)) for each in (info.id, changed, info.cwd, info.title)))
    # Rich takes any output for a terminal where FORCE_COLOR is set.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
    return FINISHED


def _export(arguments: argparse.Namespace) -> int:
    from ale_jax.agent.assistant.atif import export

    export(sessions_of(arguments).events(arguments.session), arguments.out)
    return FINISHED


def _acp(arguments: argparse.Namespace) -> int:
    from ale_jax.agent.assistant.acp_server import serve

    return asyncio.run(serve(arguments))


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": lambda arguments: asyncio.run(run(arguments)),
    "sessions": _list,
    "export": _export,
    "acp": _acp,
}


async def run(arguments: argparse.Namespace) -> int:
    """Works on one request, or talks at the terminal. Returns the exit code. ValueError for what
    the user can correct."""
    settings, endpoint = settings_of(arguments)
    request = _request(arguments)
    log = _log(arguments)
    try:
        folder = _folder(arguments.cwd or cwd_of(log.events()))
    except ValueError:
        log.close()
        raise
    stream = StreamJson(log.id, endpoint.model, lambda line: print(line, flush=True))
    terminal = _terminal() if arguments.output == "terminal" else None
    listeners: list[Any] = [terminal.view] if terminal else []
    if arguments.output == "stream-json":
        listeners = [stream]
    ask = terminal.ask if terminal and sys.stdin.isatty() else None
    setup = Setup(settings, endpoint, folder, ask, tuple(listeners))
    # Commands that still run would outlive us.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    assistant = await Assistant.open(setup, log)
    try:
        if arguments.output == "stream-json":
            started = Started(
                session=log.id,
                cwd=str(folder),
                model=endpoint.model,
                mode=assistant.mode,
                system_prompt="",
            )
            servers = tuple(server.name for server in settings.mcp_servers)
            stream.begin(started, assistant.tools, servers)
        if request is None:
            assert terminal is not None, "`_request` has seen to it"
            return await terminal.talk(assistant, arguments.state.expanduser() / "history")
        ended = await assistant.work_on(request)
        if arguments.output == "text":
            _show_answer(ended)
        return code_of(ended)
    finally:
        await assistant.close()


def _terminal() -> Terminal:
    from ale_jax.agent.assistant.terminal import Terminal

    return Terminal()


def _request(arguments: argparse.Namespace) -> str | None:
    """None: to talk. ValueError if there is neither a request nor a person."""
    request = arguments.request
    if request is None and sys.stdin.isatty():
        if arguments.output != "terminal":
            raise ValueError("name the request, or pipe it to standard input")
        return None
    if request in (None, "-"):
        request = sys.stdin.read(MAX_REQUEST_CHARS + 1)
    elif arguments.print and _is_piped(sys.stdin):
        request = f"{request}\n\n{sys.stdin.read(MAX_REQUEST_CHARS + 1)}"
    if not request.strip():
        raise ValueError("the request is empty")
    if len(request) > MAX_REQUEST_CHARS:
        raise ValueError(f"the request is longer than {MAX_REQUEST_CHARS} characters; use a file")
    return request


def _is_piped(stdin: TextIO) -> bool:
    """Whether a person put something there; programs leave other things, that may never end."""
    mode = os.fstat(stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _folder(path: str) -> Path:
    folder = Path(path or ".").resolve()
    if not folder.is_dir():
        raise ValueError(f"{path!r:.200} is no directory; choose one by --cwd")
    return folder


def _log(arguments: argparse.Namespace) -> SessionLog:
    sessions = sessions_of(arguments)
    if arguments.resume and arguments.fork:
        raise ValueError("--resume and --fork exclude each other")
    if arguments.fork:
        return sessions.fork(arguments.fork)
    if arguments.resume:
        newest = arguments.resume == "newest"
        return sessions.open(sessions.newest() if newest else arguments.resume)
    return sessions.create()


def _show_answer(ended: Ended) -> None:
    # A program reads it, and only a terminal has to be spared control characters.
    print(printable(ended.answer) if sys.stdout.isatty() else ended.answer)
    if ended.reason != "finished":
        told = printable(f"not finished ({ended.reason}): {ended.detail}")
        print(f"ale-agent: {told}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
