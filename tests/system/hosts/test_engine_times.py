"""What engines of another process do is on the timeline, on this process's clock."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.monitor.timeline import ENGINES, SAMPLING, TIMELINE_FILE, Timeline, read_timeline
from ale_jax.system.hosts.connection import Connection
from ale_jax.system.hosts.conversations import RemoteLedger
from ale_jax.system.hosts.engine_times import DRIFT, EngineTimes, PeerClock

PEER = Path(__file__).with_name("busy_peer.py")
SECONDS = st.floats(0.0, 10.0)


def test_times_that_follow_one_another_are_one_and_each_is_told_once():
    times = EngineTimes()
    for engine, start, end in [(0, 1.0, 1.5), (1, 1.0, 1.25), (0, 1.5, 1.75), (0, 3.0, 4.0)]:
        times.sampled(engine, start, end)
    told = times.news()["engines"]
    assert sorted(told) == [(0, 1.0, 1.75), (0, 3.0, 4.0), (1, 1.0, 1.25)]
    assert times.news()["engines"] == []
    times.sampled(0, 4.0, 4.5)
    assert times.news()["engines"] == [(0, 4.0, 4.5)]


@given(
    ahead=st.floats(-1e6, 1e6),
    drift=st.floats(-DRIFT, DRIFT),
    answers=st.lists(st.tuples(SECONDS, SECONDS, st.floats(0.0, 3600.0)), min_size=1),
    later=st.floats(0.0, 3600.0),
)
def test_a_clock_is_never_further_off_than_it_says(ahead, drift, answers, later):
    """However an answer's time is divided among its ways, and whichever clock is faster."""
    clock, now = PeerClock(), 0.0
    for there, back, pause in answers:
        asked, read, now = now, now + there, now + there + back
        clock.heard(asked, ahead + (1.0 + drift) * read, now)
        now += pause
    now += later
    off = clock.here(ahead + (1.0 + drift) * now) - now
    assert abs(off) <= clock.error(now) + 1e-6  # of rounding


def test_of_two_answers_the_faster_one_counts_until_the_clocks_may_have_parted():
    clock = PeerClock()
    clock.heard(0.0, 100.0, 0.2)
    clock.heard(10.0, 113.0, 16.0)  # as if it was 100 ahead, give or take 3
    assert clock.here(200.1) == pytest.approx(100.2)
    assert clock.error(10.2) == pytest.approx(0.1 + 10.2 * DRIFT)
    clock.heard(9000.0, 9101.5, 9001.0)
    assert clock.here(9101.5) == pytest.approx(9000.5)
    assert clock.error(9001.0) == pytest.approx(0.5 + DRIFT)


@pytest.mark.heavy
def test_the_engine_of_another_process_is_on_the_timeline_when_it_was_busy(tmp_path):
    """The other process's clock is an hour ahead. Its engine is busy while it answers."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, str(PEER), str(theirs.fileno())]
    asked = []
    with Timeline(tmp_path) as timeline, subprocess.Popen(command, pass_fds=[theirs.fileno()]):
        theirs.close()
        connection = Connection(ours)

        def sampled(engine, start, end, told):
            timeline.sampled(3 + engine, start, end, told)

        remote = RemoteLedger(connection, sampled)
        for _ in range(5):
            before = time.time()
            remote.stop("conversation")
            asked.append((before, time.time()))
        connection.close()
    spans = read_timeline(tmp_path / TIMELINE_FILE).records
    found = [span for span in spans if span.lane.process == ENGINES]
    assert {(span.name, span.lane.number) for span in found} == {(SAMPLING, 5)}
    text = (tmp_path / TIMELINE_FILE).read_text()
    errors = [int(each.split("}")[0]) / 1e6 for each in text.split('"clock_error_us": ')[1:]]
    assert len(found) == len(asked) == len(errors)
    for span, (before, after), error in zip(found, asked, errors, strict=True):
        assert before - error - 1e-4 <= span.start <= span.end <= after + error + 1e-4
        assert error <= (max(b - a for a, b in asked)) / 2 + 1e-3
