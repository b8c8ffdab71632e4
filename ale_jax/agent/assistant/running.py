"""`ale-agent run`: one request, or a talk at the terminal."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ale_jax.agent.assistant.assistant import Assistant, Setup
from ale_jax.agent.assistant.clipping import printable
from ale_jax.agent.assistant.events import Ended, Started
from ale_jax.agent.assistant.output.stream_json import StreamJson
from ale_jax.agent.assistant.parser import sessions_of, settings_of
from ale_jax.agent.assistant.sessions import SessionLog, cwd_of

if TYPE_CHECKING:
    from ale_jax.agent.assistant.talk import Terminal

MAX_REQUEST_CHARS = 1 << 18  # so that it fits in a line of the log


async def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 0 if the agent finished. ValueError for what the user can correct."""
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
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
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
            return await terminal.talk(assistant)
        ended = await assistant.work_on(request)
        if arguments.output == "text":
            _show_answer(ended)
        return 0 if ended.reason == "finished" else 1
    finally:
        await assistant.close()


def _terminal() -> Terminal:
    from ale_jax.agent.assistant.talk import Terminal

    return Terminal()


def _request(arguments: argparse.Namespace) -> str | None:
    """None: to talk. ValueError if there is neither a request nor a person."""
    request = arguments.request
    if request is None:
        if arguments.output != "terminal" or not sys.stdin.isatty():
            raise ValueError("name the request, or - to read it from standard input")
        return None
    if request == "-":
        request = sys.stdin.read(MAX_REQUEST_CHARS + 1)
    if not request.strip():
        raise ValueError("the request is empty")
    if len(request) > MAX_REQUEST_CHARS:
        raise ValueError(f"the request is longer than {MAX_REQUEST_CHARS} characters; use a file")
    return request


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
