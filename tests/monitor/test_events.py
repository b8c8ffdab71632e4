"""events.jsonl: plain records of what happened, also over several lives of a run."""

import pytest

from ale_jax.monitor.events import (
    EVENTS_FILE,
    MAX_DETAIL_CHARS,
    Event,
    EventLog,
    dropped_groups,
    read_events,
    readable_events,
)
from tests.monitor.fake_run import Clock


def test_events_come_back_and_a_second_life_appends(tmp_path):
    clock = Clock()
    with EventLog(tmp_path, clock) as events:
        events.record("actor_lost", "worker 1 died", worker=1)
    clock.now += 2
    with EventLog(tmp_path, clock) as events:
        events.record("resumed", "from step 3")
    assert read_events(tmp_path / EVENTS_FILE).records == (
        Event(1000.0, "actor_lost", "worker 1 died", {"worker": 1}),
        Event(1002.0, "resumed", "from step 3", {}),
    )


def test_a_long_detail_keeps_its_head_and_tail(tmp_path):
    with EventLog(tmp_path) as events:
        events.record("sandbox_lost", "head" + "x" * 10_000 + "tail")
    (event,) = read_events(tmp_path / EVENTS_FILE).records
    assert event.detail.startswith("head") and event.detail.endswith("tail")
    assert len(event.detail) < MAX_DETAIL_CHARS + 60


def test_damaged_lines_do_not_hide_the_events_that_can_be_read(tmp_path):
    path = tmp_path / EVENTS_FILE
    with EventLog(tmp_path) as events:
        events.record("actor_lost", "first")
    with path.open("ab") as file:
        file.write(b"\0\0\n[1]\n3\n" + b"[" * 100_000 + b'\n{"time": 1}\n')
    with EventLog(tmp_path) as events:
        events.record("actor_lost", "second")
    with path.open("ab") as file:
        file.write(b'{"time": 1.0, "kind": "actor_')
    assert [event.detail for event in readable_events(path)] == ["first", "second"]


def test_a_group_is_dropped_until_it_is_played_again(tmp_path):
    def event(kind, group, detail=""):
        return Event(0.0, kind, detail, {"group": group})

    again = event("group_dropped", 3, "in the step that was made anew")
    events = [
        event("group_dropped", 2),
        event("group_dropped", 3),
        event("group_dropped", 4),
        event("group_reopened", 3),
        event("group_reopened", 4),
        again,
    ]
    assert dropped_groups(events) == [events[0], again]


def test_a_field_that_is_no_plain_value_is_refused(tmp_path):
    with EventLog(tmp_path) as events, pytest.raises(ValueError, match="'box'"):
        events.record("sandbox_lost", "", box=object())
