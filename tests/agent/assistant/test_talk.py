"""A talk at the terminal: requests, commands, and Ctrl-C."""

import asyncio
import io
import os
import signal
import tempfile
from pathlib import Path

from rich.console import Console

from ale_jax.agent.assistant.assistant import Assistant, Setup
from ale_jax.agent.assistant.context_room import SUMMARISE
from ale_jax.agent.assistant.events import Written
from ale_jax.agent.assistant.settings import Settings
from ale_jax.agent.assistant.terminal import TerminalView, talk
from tests.agent.assistant.scripted import call, endpoint_that, state_of
from tests.rows import each_row


def talked(folder, endpoint, *lines, hear=None):
    """Exit code, and what was shown. An exception among the lines is raised."""
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False)
    left = [*lines, EOFError]

    def read():
        line = left.pop(0)
        if isinstance(line, type):
            raise line
        return line

    async def run():
        listeners = (TerminalView(console), *([hear] if hear else []))
        setup = Setup(Settings(), endpoint.settings, Path(folder), None, listeners)
        assistant = await Assistant.open(setup, state_of(folder).create())
        try:
            return await talk(assistant, console, read)
        finally:
            await assistant.close()

    return asyncio.run(run()), console.file.getvalue()


def test_each_line_is_a_request_and_commands_are_for_us(folder):
    def say(messages):
        if messages[-1][1] == SUMMARISE:
            return "All was well."
        last = messages[-1][1]
        return call("write", path="a", content="x") if last == "Write." else f"{last}?"

    with endpoint_that(say) as endpoint:
        lines = (
            "Hi",
            "",
            "/mode auto",
            "Write.",
            "/mode never",
            "/compact",
            "/what",
            "Hi",
            "/quit",
        )
        code, text = talked(folder, endpoint, *lines, "Never read.")
    assert code == 0 and "Hi?" in text and (folder / "a").exists()
    assert "mode auto: " in text and "one of: ask, allow-list, auto" in text
    assert "replaced by a summary" in text and "All was well." in endpoint.seen[-1][1][1]
    assert endpoint.seen[-1][-1] == ("user", "Hi") and text.count("/mode MODE") == 2


CTRL_C = KeyboardInterrupt


@each_row(
    "lines, code",
    [
        (("Wait.", "There?", "Wait.", "There?"), 0),
        (("Wait.", CTRL_C, "Never read."), 130),
        (("There?", CTRL_C, "There?", CTRL_C), 0),
        (("There?", CTRL_C, "", CTRL_C, "/mode ask", CTRL_C, CTRL_C, "Never read."), 130),
    ],
)
def test_ctrl_c_ends_the_work_on_a_request_and_twice_in_a_row_the_talk(tmp_path, lines, code):
    async def hear(event):
        if isinstance(event, Written) and "wait" in event.text:
            os.kill(os.getpid(), signal.SIGINT)

    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    answers = {"Wait.": None, "There?": "Still here."}
    with endpoint_that(lambda messages: answers[messages[-1][1]]) as endpoint:
        found, text = talked(folder, endpoint, *lines, hear=hear)
    assert found == code
    assert text.count("not finished (cancelled)") == lines.count("Wait.")
    assert text.count("Still here.") == lines.count("There?")
    assert text.count("Ctrl-C again quits") == sum(each in ("Wait.", CTRL_C) for each in lines) - (
        code == 130
    )
