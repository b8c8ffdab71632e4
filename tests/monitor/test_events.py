"""events.jsonl: plain records of what happened, also over several lives of a run."""

import pytest

from ale_jax.monitor.events import EVENTS_FILE, MAX_DETAIL_CHARS, Event, EventLog, read_events
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


def test_a_field_that_is_no_plain_value_is_refused(tmp_path):
    with EventLog(tmp_path) as events, pytest.raises(ValueError, match="'box'"):
        events.record("sandbox_lost", "", box=object())
