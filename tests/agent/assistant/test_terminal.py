"""What a person sees, and that nothing of it controls the terminal."""

import asyncio
import io

from rich.console import Console

from ale_jax.agent.assistant.clipping import clip, printable
from ale_jax.agent.assistant.events import (
    CallEnded,
    CallStarted,
    Ended,
    Replied,
    Written,
)
from ale_jax.agent.assistant.messages import AssistantCall, Usage
from ale_jax.agent.assistant.terminal import TerminalView, ask_person
from tests.rows import each_row


def shown(*events):
    file = io.StringIO()
    view = TerminalView(Console(file=file, width=80, markup=False, highlight=False))

    async def tell():
        for event in events:
            await view(event)

    asyncio.run(tell())
    return file.getvalue()


LS = AssistantCall("c1", "bash", '{"command": "ls"}')


def test_a_request_is_seen_as_words_calls_outputs_and_figures():
    lines = shown(
        Written(part="thought", text="Hm"),
        Written(part="text", text="I "),
        Written(part="text", text="look."),
        Replied(content="I look.", reasoning="", calls=(LS,), stop="", usage=Usage(9, 2, 3)),
        CallStarted(call=LS, arguments={"command": "ls"}),
        CallEnded(call_id="c1", name="bash", output="\n".join("abcdefgh")),
        Ended(reason="finished", answer="Seen.", turns=1, seconds=2.0),
    ).splitlines()
    assert lines[:3] == ["Hm", "I look.", "● bash ls"]
    assert lines[3:10] == [*(f"  {letter}" for letter in "abcdef"), "  [2 more lines]"]
    assert lines[10] == "1 turns, 2.0 s, 9 tokens read (3 cached), 2 written"
    assert lines[11:] == ["Seen."]


def test_an_answer_that_was_read_while_it_was_written_is_not_repeated():
    text = shown(
        Written(part="text", text="Yes."),
        Replied(content="Yes.", reasoning="", calls=(), stop="", usage=None),
        Ended(reason="finished", answer="Yes."),
    )
    assert text.count("Yes.") == 1


def test_nothing_that_is_shown_controls_the_terminal():
    evil = "a\x1b]0;owned\x07\x1b[2J\r\u202e[bold]b[/bold]"
    call = AssistantCall("c1", evil, "{}")
    text = shown(
        Written(part="text", text=evil),
        CallStarted(call=call, arguments={"command": evil}),
        CallEnded(call_id="c1", name=evil, output=evil),
        Ended(reason="failed", answer=evil, detail=evil),
    )
    assert not set(text) & set("\x1b\x07\r\u202e")
    assert text.count("[bold]b[/bold]") == 6, "markup is text"


@each_row(
    "typed, answer",
    [("y\n", "once"), ("Always\n", "always"), ("\n", "no"), ("", "no"), ("what\nn\n", "no")],
)
def test_a_person_is_asked_until_there_is_an_answer(monkeypatch, typed, answer):
    file = io.StringIO()
    console = Console(file=file, width=80, markup=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert asyncio.run(ask_person(console, "bash", {"command": "rm\x1b x"})) == answer
    assert "bash: rm\N{REPLACEMENT CHARACTER} x" in file.getvalue()


def test_a_person_sees_what_would_be_written(monkeypatch):
    file = io.StringIO()
    console = Console(file=file, width=80, markup=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    edit = {"path": "a", "old": "x = 1", "new": "x = 2\x1b"}
    assert asyncio.run(ask_person(console, "edit", edit)) == "no"
    assert file.getvalue().splitlines()[1:] == [
        "old:",
        "x = 1",
        "new:",
        "x = 2\N{REPLACEMENT CHARACTER}",
    ]


def test_of_an_error_the_end_is_shown():
    failed = CallEnded(call_id="c1", name="bash", output="\n".join("abcdefgh"), is_error=True)
    assert shown(failed).split() == [*"cdefgh", "[2", "more", "lines]"]


def test_a_sub_agent_is_indented_and_its_answer_shown_once():
    task = AssistantCall("c1", "task", '{"task": "Count."}')
    text = shown(
        CallStarted(call=task, arguments={"task": "Count."}),
        Written(agent="c1", part="text", text="There\nare 3."),
        Replied(agent="c1", content="There\nare 3.", reasoning="", calls=(), stop="", usage=None),
        CallEnded(call_id="c1", name="task", output="There\nare 3."),
    )
    assert text.splitlines() == ["● task Count.", "  There", "  are 3."]


def test_of_a_long_text_head_and_tail_are_kept():
    assert clip("abcdefghij", 10) == "abcdefghij"
    assert clip("abcdefghij", 5) == "abc\n[... 5 characters left out ...]\nij"
    assert printable("a\tb\nc\0") == "a\tb\nc\N{REPLACEMENT CHARACTER}"
