"""Progress speaks plainly where there is no terminal, and gives a terminal back."""

import contextlib
import dataclasses
import io
import os

import pytest
from rich.console import Console

from ale_jax.monitor.progress import (
    Figures,
    Progress,
    View,
    duration,
    make_progress,
    panel,
    sparkline,
)
from tests.monitor.fake_run import Clock


def plain_progress(clock):
    stream = io.StringIO()
    return stream, Progress(Console(file=stream), plain=True, clock=clock)


def live_progress():
    stream = io.StringIO()
    return stream, Progress(Console(file=stream, force_terminal=True, width=100), plain=False)


def test_plain_lines_come_per_phase_and_every_few_seconds():
    clock = Clock()
    stream, progress = plain_progress(clock)
    with progress:
        progress.phase("rl", 100)
        for done in range(1, 8):
            clock.now += 2
            progress.update(done, success=0.25, staleness_mean=0.5, staleness_max=2, episodes=1234)
    # Lines at 6 s and 12 s, and the last state; 2 s per step tell the time left, but not yet at 6.
    figures = "success 25%  staleness 0.5 (max 2)  1,234 episodes"
    assert stream.getvalue().splitlines() == [
        "[0s] rl: 100 steps",
        f"[6s] rl 3/100  {figures}",
        f"[12s] rl 6/100  {figures}  3m08s left",
        f"[14s] rl 7/100  {figures}  3m06s left",
    ]


def test_no_time_is_left_before_it_is_known():
    clock = Clock()
    stream, progress = plain_progress(clock)
    with progress:
        progress.phase("rl", 100, done=50)
        progress.compile_started("the step")
        clock.now += 60
        progress.compile_ended("the step", 58.0)
        progress.update(51)
        for done in (52, 53, 54, 55):
            if done == 53:
                progress.compile_started("another")
                clock.now += 100
                progress.compile_ended("another", 100.0)
            clock.now += 6
            progress.update(done)
    assert stream.getvalue().splitlines() == [
        "[0s] rl: 100 steps",
        "[0s] compiling the step ...",
        "[1m00s] compiled the step in 58.0 s",
        "[1m00s] rl 51/100",
        "[1m06s] rl 52/100",
        "[1m06s] compiling another ...",
        "[2m46s] compiled another in 100.0 s",
        "[2m52s] rl 53/100",
        "[2m58s] rl 54/100",
        "[3m04s] rl 55/100  4m30s left",
    ]


def test_a_phase_says_at_which_success_it_stops():
    clock = Clock()
    stream, progress = plain_progress(clock)
    with progress:
        progress.phase("warm start", 100, target=0.6)
        for done in (1, 2, 3, 4):
            clock.now += 2
            progress.update(done, success=0.25)
    assert stream.getvalue().splitlines() == [
        "[0s] warm start: stops at success 60%, or after 100 steps",
        "[6s] warm start 3/100  success 25%  stops at success 60%",
        "[8s] warm start 4/100  success 25%  stops at success 60%  at most 3m12s left",
    ]


def test_a_new_phase_forgets_the_figures_of_the_last():
    stream, progress = plain_progress(Clock())
    with progress:
        progress.phase("sft", 1)
        progress.update(1, loss=0.5)
        progress.phase("rl", 1)
        progress.update(1, reward=1.0)
    assert stream.getvalue().splitlines() == [
        "[0s] sft: 1 steps",
        "[0s] sft 1/1  loss 0.500",
        "[0s] rl: 1 steps",
        "[0s] rl 1/1  reward +1.00",
    ]


def test_the_last_line_of_a_phase_comes_at_once_and_once():
    stream, progress = plain_progress(Clock())
    with progress:
        progress.phase("rl", 2)
        progress.update(1)
        progress.update(2)
        progress.note("all is written")
    assert stream.getvalue().splitlines() == [
        "[0s] rl: 2 steps",
        "[0s] rl 2/2",
        "[0s] all is written",
    ]


def test_a_note_cannot_drive_the_terminal():
    stream, progress = plain_progress(Clock())
    with progress:
        progress.note("lost\n\x1b[2J[bold]box[/bold]")
    assert stream.getvalue() == "[0s] lost ␛[2J[bold]box[/bold]\n"


def test_a_note_is_shown_as_it_is_written():
    stream, progress = plain_progress(Clock())
    written = "main.py:100: see :x: [red]"
    with progress:
        progress.note(written)
    assert stream.getvalue() == f"[0s] {written}\n"


@pytest.fixture
def unread():
    """A stream that whoever read it has closed."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    yield stream
    with contextlib.suppress(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize("plain", [True, False])
def test_what_nobody_reads_neither_ends_a_run_nor_hides_why_it_ends(unread, plain):
    with pytest.raises(KeyboardInterrupt, match="the run's own"):
        with make_progress(unread, plain) as progress:
            progress.phase("rl", 2)
            progress.update(1)
            progress.note("going on")
            raise KeyboardInterrupt("the run's own")


def test_an_unknown_figure_is_refused():
    _, progress = plain_progress(Clock())
    with pytest.raises(TypeError, match="sucess"):
        progress.update(1, sucess=0.5)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_cursor_comes_back_when_an_exception_passes(error):
    stream, progress = live_progress()
    with pytest.raises(error):
        with progress:
            progress.phase("rl", 10)
            progress.update(3, success=0.5)
            raise error
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert stream.getvalue().rindex(show) > stream.getvalue().index(hide)


def test_the_last_state_of_a_broken_phase_is_told():
    stream, progress = plain_progress(Clock())
    with pytest.raises(KeyboardInterrupt):
        with progress:
            progress.phase("rl", 10)
            progress.update(3, success=0.5)
            raise KeyboardInterrupt
    assert stream.getvalue().splitlines()[-1].startswith("[0s] rl 3/10  success 50%")


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_panel_fits_its_terminal(width):
    figures = {field.name: 1 for field in dataclasses.fields(Figures)}
    stream = io.StringIO()
    view = View("rl", 3, 10, 60.0, 30.0, figures, (0.0, 0.5, 1.0))
    Console(file=stream, width=width).print(panel(view))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) == min(width, 96)
    assert any("success" in line for line in lines)


def test_a_stream_that_is_no_terminal_gets_plain_lines():
    stream = io.StringIO()
    with make_progress(stream) as progress:
        progress.phase("rl", 2)
    assert stream.getvalue() == "[0s] rl: 2 steps\n"


def test_sparkline_has_a_fixed_scale_and_averages():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], width=2) == "▁█"
    assert sparkline([]) == ""


def test_durations():
    assert [duration(s) for s in (8, 185, 7800)] == ["8s", "3m05s", "2h10m"]
