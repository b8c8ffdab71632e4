"""A talk with a person at the terminal. It is loaded only where there is one: what draws on
terminals takes as long to load as all the rest, and programs start an agent for each task."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ale_jax.agent.assistant.assistant import Assistant
from ale_jax.agent.assistant.clipping import printable
from ale_jax.agent.assistant.endpoint import EndpointError
from ale_jax.agent.assistant.output.terminal import TerminalView, ask_person, read_line
from ale_jax.agent.assistant.permissions import MODES

HELP = "/mode MODE, /compact, /quit; Ctrl-C interrupts the agent"


class Terminal:
    """view: a listener that shows the session."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, emoji=False, markup=False)
        self.view = TerminalView(self._console)

    async def ask(self, call_id: str, tool: str, asked: Mapping[str, Any]) -> str:
        return await ask_person(self._console, tool, asked)

    async def talk(self, assistant: Assistant) -> int:
        return await talk(assistant, self._console)


async def talk(assistant: Assistant, console: Console) -> int:
    """Works on each line that a person types, until the end."""
    console.print(f"session {assistant.session}, mode {assistant.mode}. {HELP}")
    while True:
        try:
            line = read_line(console, "> ")
        except (EOFError, KeyboardInterrupt):
            return 0
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return 0
        if command.startswith("/"):
            await _command(assistant, console, command, rest.strip())
        elif command:
            await _answer(assistant, console, line)


async def _command(assistant: Assistant, console: Console, command: str, rest: str) -> None:
    if command == "/mode" and rest in MODES:
        assistant.mode = rest
        console.print(f"mode {rest}: {MODES[rest]}")
    elif command == "/mode":
        console.print(f"one of: {', '.join(MODES)}")
    elif command == "/compact":
        try:
            await assistant.compact()
        except EndpointError as error:
            console.print(printable(str(error)))
    else:
        console.print(HELP)


async def _answer(assistant: Assistant, console: Console, request: str) -> None:
    """Ctrl-C ends the work on this request, and not the talk."""
    work = asyncio.ensure_future(assistant.work_on(request))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if not work.cancelled():
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
