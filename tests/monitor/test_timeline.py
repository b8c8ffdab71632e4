"""The timeline is a trace that Perfetto opens, also of a run that was killed, resumed or long."""

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ale_jax.monitor import timeline as module
from ale_jax.monitor.timeline import (
    BEGUN,
    EARLIER_FILE,
    ENGINES,
    EPISODES,
    JOINED_S,
    LEARNER,
    LENT,
    REWARD_WORKERS,
    SAMPLING,
    TIMELINE_FILE,
    UPDATE,
    WAITING,
    Lane,
    Span,
    Timeline,
    read_timeline,
)
from tests.monitor.traces import trace_events


def spans(workdir, process=None):
    read = read_timeline(workdir / TIMELINE_FILE)
    assert read.truncated_line is None
    return [span for span in read.records if process in (None, span.lane.process)]


def test_laps_follow_one_another_in_seconds_since_the_epoch(tmp_path):
    began = time.time()
    with Timeline(tmp_path) as timeline:
        time.sleep(0.02)
        timeline.lap(WAITING)
        timeline.lap(UPDATE)
    begun, waiting, update = spans(tmp_path)
    assert [begun.name, waiting.name, update.name] == [BEGUN, WAITING, UPDATE]
    assert began - 0.01 <= begun.start == begun.end <= waiting.start
    assert 0.02 <= waiting.end - waiting.start < 5
    assert waiting.end == pytest.approx(update.start, abs=2e-6)


def test_every_lane_has_a_name_and_a_number_that_no_other_has(tmp_path):
    lanes = [Lane(ENGINES), Lane(EPISODES, 12), Lane(EPISODES, 3), Lane(REWARD_WORKERS)]
    with Timeline(tmp_path) as timeline:
        timeline.write([Span(lane, "x", 1.0, 2.0, {"group": 5}) for lane in lanes])
        timeline.write([Span(lane, "x", 3.0, 4.0) for lane in lanes])
    events = trace_events(tmp_path / TIMELINE_FILE)
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    titles = ["engine 0", "learner", "place 12", "place 3", "reward worker 0"]
    assert sorted(named.values()) == titles
    assert {e["tid"] for e in events} >= named.keys()
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        *(LEARNER, ENGINES, EPISODES, REWARD_WORKERS)
    ]
    assert {span.lane for span in spans(tmp_path)} == {Lane(LEARNER), *lanes}
    assert sum(e.get("args") == {"group": 5} for e in events) == len(lanes)


def test_dispatches_without_a_pause_are_one_span_of_at_most_a_second(tmp_path):
    with Timeline(tmp_path) as timeline:
        for number in range(30):
            timeline.sampled(0, 10 + 0.1 * number, 10 + 0.1 * (number + 1))
            timeline.sampled(1, 10 + 0.1 * number, 10 + 0.1 * number + 0.05)
    found = spans(tmp_path, ENGINES)
    first = [span for span in found if span.lane.number == 0]
    assert 3 <= len(first) <= 4 and max(s.end - s.start for s in first) <= JOINED_S + 1e-5
    assert sum(s.end - s.start for s in first) == pytest.approx(3.0, abs=1e-4)
    assert len(found) - len(first) == 30
    assert {span.name for span in found} == {SAMPLING}


def test_an_engine_whose_devices_are_lent_has_a_span_of_its_own(tmp_path):
    with Timeline(tmp_path) as timeline:
        timeline.sampled(1, 10.0, 11.0)
        timeline.lent(1, 11.0, 12.5)
        timeline.sampled(1, 12.5, 13.0)
    found = sorted(spans(tmp_path, ENGINES), key=lambda span: span.start)
    assert [(span.lane.number, span.name) for span in found] == [
        *((1, SAMPLING), (1, LENT), (1, SAMPLING))
    ]
    assert found[1].end - found[1].start == pytest.approx(1.5, abs=1e-5)


def test_what_touches_or_nests_does_so_in_the_file(tmp_path):
    """Microseconds are rounded: an inner span must not end after the one around it."""
    lane, moments = Lane(EPISODES), [k * 0.1234567 / 7 for k in range(200)]
    with Timeline(tmp_path) as timeline:
        inner = itertools.pairwise(moments)
        timeline.write(
            [Span(lane, "all", 0, moments[-1]), *(Span(lane, "one", *each) for each in inner)]
        )
    whole, *parts = [e for e in trace_events(tmp_path / TIMELINE_FILE) if e.get("pid") == 3][-200:]
    ends = [each["ts"] + each["dur"] for each in parts]
    assert ends[:-1] == [each["ts"] for each in parts[1:]]
    assert ends[-1] == whole["ts"] + whole["dur"] and parts[0]["ts"] == whole["ts"]


@pytest.mark.parametrize("left", [0, 1, 9, 40])
def test_a_killed_run_leaves_a_trace_and_its_continuation_goes_on_in_it(tmp_path, left):
    killed = Timeline(tmp_path)  # never closed
    killed.lap(WAITING)
    killed.lap(UPDATE)
    path = tmp_path / TIMELINE_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - left])
    assert (read_timeline(path).truncated_line is None) == (left == 0)
    assert trace_events(path)[-1]["name"] in (WAITING, UPDATE)
    with Timeline(tmp_path) as timeline:
        timeline.lap(WAITING)
    names = [span.name for span in spans(tmp_path)]
    assert names == [BEGUN, WAITING, *[UPDATE] * (not left), BEGUN, WAITING]


def test_a_file_that_is_full_makes_way_for_another_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 3000)
    with Timeline(tmp_path) as timeline:
        for number in range(100):
            timeline.write([Span(Lane(EPISODES, number % 3), "x", 1.0, 2.0 + number)])
    both = [tmp_path / EARLIER_FILE, tmp_path / TIMELINE_FILE]
    assert sorted(tmp_path.iterdir()) == both
    found = [span for path in both for span in read_timeline(path).records]
    lengths = [round(span.end - span.start) for span in found]
    assert lengths == list(range(lengths[0], 101)) and len(lengths) > 20
    for path in both:
        assert path.stat().st_size < 3300
        events = trace_events(path)
        assert [e["name"] for e in events[:2]] == ["process_name", "process_sort_index"]
        labelled = {e["tid"] for e in events if e["name"] == "thread_name"}
        assert labelled == {e["tid"] for e in events if e["ph"] == "X"}


def test_a_process_that_has_lost_the_folder_writes_nothing_more(tmp_path):
    ours = [True]
    with Timeline(tmp_path, lambda: ours[0]) as timeline:
        timeline.lap(WAITING)
        before = (tmp_path / TIMELINE_FILE).read_bytes()
        ours[0] = False
        timeline.lap(UPDATE)
        timeline.sampled(0, 1.0, 2.0)
    assert (tmp_path / TIMELINE_FILE).read_bytes() == before


def test_a_full_disk_ends_the_run_and_no_other_thread(tmp_path):
    with Timeline(tmp_path) as timeline:
        timeline._file.close()
        timeline._file = open("/dev/full", "ab")  # noqa: SIM115 (the timeline closes it)
        timeline.write([Span(Lane(EPISODES), "x", 1.0, 2.0)])
        with pytest.raises(OSError, match="No space left"):
            timeline.lap(WAITING)


def test_threads_write_whole_lines_also_to_file_after_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)

    def write(number):
        for at in range(300):
            timeline.write([Span(Lane(EPISODES, number), "x", at, at + 1)])

    with Timeline(tmp_path) as timeline, ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert read_timeline(tmp_path / EARLIER_FILE).records
    spans(tmp_path)


@pytest.mark.parametrize(
    "event",
    [
        {"ts": "nan"},
        {"ts": -1},
        {"dur": -1},
        {"ts": 10**18},
        {"pid": 9},
        {"tid": None},
        {"ph": ...},
        {"ts": ...},
    ],
    ids=str,
)
def test_a_damaged_line_is_named(tmp_path, event):
    Timeline(tmp_path).__exit__()
    path = tmp_path / TIMELINE_FILE
    good = {"ph": "X", "name": "x", "pid": 1, "tid": 100000, "ts": 1, "dur": 1}
    damaged = {name: value for name, value in (good | event).items() if value is not ...}
    lines = [*path.read_text().splitlines(), json.dumps(good) + ",", json.dumps(damaged) + ","]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=rf"timeline\.json, line {len(lines)}: damaged"):
        read_timeline(path)
