"""The session at a terminal, as a person sees it and talks to the agent.

It is loaded only where there is a person: what draws on terminals takes as long to load as all the
rest, and programs start an agent for each task.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ale_jax.agent.assistant.assistant import Assistant
from ale_jax.agent.assistant.clipping import clip, printable
from ale_jax.agent.assistant.endpoint import EndpointError
from ale_jax.agent.assistant.events import (
    CallEnded,
    CallStarted,
    Compacted,
    Ended,
    Event,
    OutputsMoved,
    Replied,
    Written,
)
from ale_jax.agent.assistant.exit_codes import FINISHED, INTERRUPTED
from ale_jax.agent.assistant.keyboard import Requests, read_line
from ale_jax.agent.assistant.messages import Usage
from ale_jax.agent.assistant.permissions import ALWAYS, MODES, NO, ONCE, subject_of

SHOWN_LINES, SHOWN_CHARS, SUBJECT_CHARS, CHANGE_CHARS = 6, 1000, 300, 4000
SEEN_BEFORE = ("finish", "task")
CHANGES = {"write": ("content",), "edit": ("old", "new")}  # what a person has to see, to permit it
HELP = "/mode MODE, /compact, /quit; Ctrl-C interrupts the agent, and twice quits"
INTERRUPT_AGAIN = "interrupted; Ctrl-C again quits"
ANSWERS = {"y": ONCE, "yes": ONCE, "a": ALWAYS, "always": ALWAYS, "n": NO, "no": NO, "": NO}


class TerminalView:
    """A listener. Whatever it prints is without control characters and markup."""

    def __init__(self, console: Console):
        self._console = console
        self._part = ""  # of a reply, that is being written
        self._usage, self._said = Usage(0, 0), ""

    async def __call__(self, event: Event) -> None:
        margin = "  " if event.agent else ""
        match event:
            case Written():
                self._write(event, margin)
            case Replied():
                self._end_part()
                self._usage += event.usage or Usage(0, 0)
                self._said = event.content
            case CallStarted():
                subject = _subject(event.call.name, event.arguments or {})
                self._line(f"{margin}● {event.call.name} ", _short(subject), style="bold cyan")
            # What these return has been seen before.
            case CallEnded() if event.is_error or event.name not in SEEN_BEFORE:
                self._output(event, margin)
            case OutputsMoved():
                self._line(f"{margin}[{len(event.files)} long outputs moved to files]", style="dim")
            case Compacted():
                self._line(f"{margin}[the conversation was replaced by a summary]", style="dim")
            case Ended(agent=""):
                self._end(event)

    def _write(self, event: Written, margin: str) -> None:
        part = f"{margin}{event.part}"
        if part != self._part:
            self._end_part()
            self._part = part
            self._console.print(margin, end="")
        style = "" if event.part == "text" else "dim italic"
        text = printable(event.text).replace("\n", f"\n{margin}")
        self._console.print(Text(text, style), end="", soft_wrap=True)

    def _end_part(self) -> None:
        if self._part:
            self._console.print()
        self._part = ""

    def _output(self, event: CallEnded, margin: str) -> None:
        # What went wrong is mostly said at the end.
        if event.is_error:
            lines, style = event.output[-SHOWN_CHARS:].splitlines()[-SHOWN_LINES:], "red"
        else:
            lines, style = event.output[:SHOWN_CHARS].splitlines()[:SHOWN_LINES], "dim"
        for line in lines:
            self._line(f"{margin}  {line}", style=style)
        left = event.output.count("\n") + 1 - SHOWN_LINES
        if left > 0:
            self._line(f"{margin}  [{left} more lines]", style="dim")

    def _end(self, event: Ended) -> None:
        self._end_part()
        used = f"{self._usage.prompt} tokens read ({self._usage.cached} cached)"
        how = (
            f"{event.turns} turns, {event.seconds:.1f} s, {used}, {self._usage.completion} written"
        )
        self._line(how, style="dim")
        if event.reason != "finished":
            why = f": {event.detail}" if event.detail else ""
            self._line(f"not finished ({event.reason}){why}", style="bold red")
        if event.answer and event.answer != self._said:
            self._line(event.answer, style="bold")

    def _line(self, text: str, more: str = "", style: str = "") -> None:
        self._end_part()
        line = Text(printable(text), style).append(printable(more), "default")
        self._console.print(line, soft_wrap=True)


async def ask_person(console: Console, tool: str, arguments: Mapping[str, Any]) -> str:
    """Returns a person's answer; NO at the end of the input. Ctrl-C is raised as CancelledError."""
    shown = printable(subject_of(tool, arguments))
    console.print(Text.assemble(("Allow ", "bold"), (tool, "bold cyan"), f": {shown}"))
    for name in CHANGES.get(tool, ()):
        change = printable(clip(str(arguments.get(name, "")), CHANGE_CHARS))
        console.print(Text(f"{name}:\n{change}", "dim"), soft_wrap=True)
    while True:
        try:
            typed = read_line("[y]es, [a]lways, [n]o: ")
        except EOFError:
            return NO
        except KeyboardInterrupt:
            raise asyncio.CancelledError from None
        if (answer := ANSWERS.get(typed.strip().lower())) is not None:
            return answer


def _subject(tool: str, arguments: Mapping[str, Any]) -> str:
    if tool == "finish":  # it is shown as what it is
        return ""
    texts = [each for each in arguments.values() if isinstance(each, str)]
    return texts[0] if len(arguments) == len(texts) == 1 else subject_of(tool, arguments)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUBJECT_CHARS else f"{line[:SUBJECT_CHARS]}..."


class Terminal:
    """The terminal of a person. view: a listener that shows the session."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, emoji=False, markup=False)
        self.view = TerminalView(self._console)

    async def ask(self, call_id: str, tool: str, asked: Mapping[str, Any]) -> str:
        return await ask_person(self._console, tool, asked)

    async def talk(self, assistant: Assistant, history: Path) -> int:
        return await talk(assistant, self._console, Requests(history).read)


async def talk(assistant: Assistant, console: Console, read: Callable[[], str]) -> int:
    """Works on each line that a person types, until the end. Returns the exit code. read: raises
    EOFError at the end, KeyboardInterrupt for Ctrl-C, of which two in a row are the end, too."""
    console.print(f"session {assistant.session}, mode {assistant.mode}. {HELP}")
    interrupted = False
    while True:
        try:
            line = read()
        except EOFError:
            return FINISHED
        except KeyboardInterrupt:
            if interrupted:
                return INTERRUPTED
            interrupted = True
        else:
            if line.strip() == "/quit":
                return FINISHED
            interrupted = not await _unless_interrupted(_work_on(line, assistant, console))
        if interrupted:
            console.print(INTERRUPT_AGAIN)


async def _work_on(line: str, assistant: Assistant, console: Console) -> None:
    command, _, rest = line.strip().partition(" ")
    if command.startswith("/"):
        await _command(assistant, console, command, rest.strip())
    elif command:
        await assistant.work_on(line)


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


async def _unless_interrupted(work: Coroutine[Any, Any, None]) -> bool:
    """Returns whether the work was done. Ctrl-C ends the work, and not the talk; a second one, that
    comes before the work has ended, both."""
    working, talking = asyncio.ensure_future(work), asyncio.current_task()
    assert talking is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(
        signal.SIGINT, lambda: (talking if working.cancelling() else working).cancel()
    )
    try:
        await working
        return True
    except asyncio.CancelledError:
        if talking.cancelling() or not working.cancelled():
            raise
        return False
    finally:
        loop.remove_signal_handler(signal.SIGINT)
