"""The picture of the last steps has every lane, in its place, and stays small."""

import re

import pytest

from ale_jax.monitor.timeline import (
    BEGUN,
    BOOT,
    ENGINES,
    EPISODES,
    EVALUATION,
    LEARNER,
    REPLY,
    SAMPLING,
    UPDATE,
    WAITING,
    Lane,
    Span,
)
from ale_jax.monitor.timeline_picture import MAX_ROWS, draw


def steps(count, places=2, start=100.0):
    """Steps of ten seconds: a boot and a reply of one second each, and an update of eight."""
    spans = []
    for at in (start + 10 * step for step in range(count)):
        spans += [
            Span(Lane(LEARNER), WAITING, at, at + 2),
            Span(Lane(LEARNER), UPDATE, at + 2, at + 10),
        ]
        spans += [Span(Lane(ENGINES), SAMPLING, at + 1, at + 2)]
        for place in range(places):
            lane = Lane(EPISODES, place)
            spans += [Span(lane, "trail 7", at, at + 2), Span(lane, BOOT, at, at + 1)]
            spans += [Span(lane, REPLY, at + 1, at + 2)]
    return spans


def bars(path):
    """Left end and width of each."""
    return [tuple(map(float, each)) for each in re.findall(r"M([\d.]+) 10h([\d.]+)v", path)]


def test_the_last_three_steps_are_drawn_from_the_first_wait_to_the_last_work():
    after = Span(Lane(LEARNER), EVALUATION, 150.0, 900.0)
    picture = draw([*steps(5), after])
    assert [row.label for row in picture.rows] == ["learner", "engine 0", "place 0", "place 1"]
    learner, engine, place, _ = (dict(row.paths) for row in picture.rows)
    thirds = [0, 100 / 3, 200 / 3]
    assert bars(learner[UPDATE]) == [
        pytest.approx((each + 20 / 3, 80 / 3), abs=0.02) for each in thirds
    ]
    assert bars(place[REPLY]) == [
        pytest.approx((each + 10 / 3, 10 / 3), abs=0.02) for each in thirds
    ]
    assert bars(engine[SAMPLING]) == bars(place[REPLY])
    assert [tick.label for tick in picture.ticks][:2] == ["0 s", "5 s"]


def test_bubbles_are_drawn_low_in_the_style_of_what_is_waited_for():
    learner, engine, *_ = (dict(row.paths) for row in draw(steps(1)).rows)
    assert learner.keys() == {UPDATE, BOOT + " idle", REPLY + " idle"}
    assert engine.keys() == {SAMPLING, BOOT + " idle", UPDATE + " idle"}
    assert "v-3H" in engine[UPDATE + " idle"] and "v-10H" in engine[SAMPLING]
    assert bars(engine[UPDATE + " idle"]) == bars(learner[UPDATE])


def test_of_a_resumed_run_the_last_process_is_drawn():
    begun = Span(Lane(LEARNER), BEGUN, 500, 500)
    learner, *_ = draw([*steps(5), begun, *steps(1, start=500.0)]).rows
    assert bars(dict(learner.paths)[UPDATE]) == [(20, 80)]


def test_many_places_are_counted_and_not_drawn():
    picture = draw(steps(1, places=40))
    assert len(picture.rows) == 2 + MAX_ROWS[EPISODES]
    assert picture.left_out == 40 - MAX_ROWS[EPISODES]


def test_many_short_spans_make_no_long_path():
    many = [
        Span(Lane(EPISODES), REPLY, 100 + k / 1e4, 100 + k / 1e4 + 4e-5) for k in range(100_000)
    ]
    *_, row = draw([*steps(1, places=0), *many]).rows
    assert sum(len(path) for _, path in row.paths) < 80_000


@pytest.mark.parametrize("spans", [[], steps(1)[:1], [Span(Lane(LEARNER), UPDATE, 1.0, 2.0)]])
def test_without_a_step_there_is_no_picture(spans):
    assert draw(spans) is None
