"""Idle time of learner and engines has a cause, and is counted once."""

import pytest

from ale_jax.monitor.bubbles import CAUSES, NO_EPISODE, find_bubbles, sum_bubbles
from ale_jax.monitor.timeline import (
    BEGUN,
    BOOT,
    ENGINES,
    ENVIRONMENT,
    EPISODES,
    EVALUATION,
    LEARNER,
    LENT,
    PUBLISH,
    REPLY,
    REPORT,
    REWARD_WORKERS,
    SAMPLING,
    SAVE,
    START,
    UPDATE,
    VERDICT,
    WAITING,
    Lane,
    Span,
)

LEARNS, ENGINE, OTHER, FIRST, SECOND = (
    *(Lane(LEARNER), Lane(ENGINES), Lane(ENGINES, 1)),
    *(Lane(EPISODES), Lane(EPISODES, 1)),
)


def row(lane, *parts):
    """Spans that follow one another: name and end of each; "" for a gap."""
    spans, start = [], 0
    for name, end in parts:
        spans += [Span(lane, name, start, end)] * bool(name)
        start = end
    return spans


# Two episodes, of which the second is slow, then an update.
STEP = [
    *row(LEARNS, (START, 1), (WAITING, 20), (UPDATE, 26), (SAVE, 28), (PUBLISH, 29), (REPORT, 30)),
    *row(ENGINE, ("", 4), (SAMPLING, 7), ("", 12), (SAMPLING, 14)),
    *row(FIRST, ("", 1), (BOOT, 3), (REPLY, 6), (ENVIRONMENT, 8), (VERDICT, 10)),
    *row(SECOND, ("", 2), (BOOT, 4), (REPLY, 7), (ENVIRONMENT, 12), (REPLY, 14), (VERDICT, 18)),
]


def causes(spans, lane):
    return [tuple(each[1:]) for each in sorted(find_bubbles(spans)) if each.lane == lane]


def by_time(found):
    return sorted(found, key=lambda bubble: bubble[1])


def test_a_learner_waits_for_what_episodes_do():
    assert by_time(causes(STEP, LEARNS)) == [
        (BOOT, 1, 3),
        (REPLY, 3, 7),
        (ENVIRONMENT, 7, 12),
        (REPLY, 12, 14),
        (VERDICT, 14, 18),
        (NO_EPISODE, 18, 20),
    ]


def test_an_engine_waits_for_episodes_and_else_for_the_learner():
    assert by_time(causes(STEP, ENGINE)) == [
        (BOOT, 1, 3),
        (REPLY, 3, 4),
        (ENVIRONMENT, 7, 12),
        (VERDICT, 14, 18),
        (NO_EPISODE, 18, 20),
        (UPDATE, 20, 26),
        (SAVE, 26, 28),
        (PUBLISH, 28, 29),
        (REPORT, 29, 30),
    ]


def test_an_engine_waits_for_episodes_in_progress_also_during_an_update():
    spans = [
        *row(LEARNS, (UPDATE, 9)),
        *row(ENGINE, (SAMPLING, 4)),
        *row(FIRST, (REPLY, 4), (ENVIRONMENT, 6)),
    ]
    assert by_time(causes(spans, ENGINE)) == [(ENVIRONMENT, 4, 6), (UPDATE, 6, 9)]


def test_an_engine_whose_devices_learn_is_not_idle():
    spans = [
        *row(LEARNS, (UPDATE, 9)),
        *row(ENGINE, (SAMPLING, 2), ("", 3), (LENT, 9)),
        *row(FIRST, (REPLY, 9)),
    ]
    assert by_time(causes(spans, ENGINE)) == [(REPLY, 2, 3)]


def test_bubbles_and_work_fill_the_time():
    for lane, work in ((LEARNS, 10), (ENGINE, 5)):
        idle = sum(end - start for _, start, end in causes(STEP, lane))
        assert idle + work == 29


def test_an_evaluation_is_a_bubble_of_the_learner_and_played_by_engines():
    spans = [
        *row(LEARNS, (EVALUATION, 10), (WAITING, 12)),
        *row(ENGINE, ("", 3), (SAMPLING, 9)),
        *row(FIRST, (BOOT, 3), (REPLY, 9)),
    ]
    assert by_time(causes(spans, LEARNS)) == [(EVALUATION, 0, 10), (NO_EPISODE, 10, 12)]
    assert by_time(causes(spans, ENGINE)) == [(BOOT, 0, 3), (NO_EPISODE, 9, 12)]


def test_totals_are_shares_of_the_time_and_means_over_engines():
    busy = [Span(OTHER, SAMPLING, 0, 30)]
    totals = sum_bubbles(STEP + busy)
    assert totals.seconds == 29
    shares = {each.cause: (each.learner, each.engine) for each in totals.rows}
    assert shares[ENVIRONMENT] == pytest.approx((500 / 29, 250 / 29))
    assert shares[UPDATE] == pytest.approx((0, 300 / 29))
    assert totals.rows[0].cause == ENVIRONMENT, "the longest comes first"
    assert shares.keys() <= CAUSES.keys()


def test_the_pause_before_a_run_was_resumed_is_no_bubble():
    begun = Span(LEARNS, BEGUN, 100, 100)
    again = [span._replace(start=span.start + 100, end=span.end + 100) for span in STEP]
    once, twice = sum_bubbles(STEP), sum_bubbles([*STEP, begun, *again])
    assert twice.seconds == 2 * once.seconds
    assert [each[1:] for each in twice.rows] == [pytest.approx(each[1:]) for each in once.rows]


def test_a_timeline_without_a_step_has_no_bubbles():
    assert sum_bubbles([]) == (0.0, ())
    assert sum_bubbles(row(LEARNS, (START, 3))) == (0.0, ())


def test_names_that_are_ours_count_in_their_own_rows_only():
    """A family may be called like a part of an episode."""
    spans = [*row(LEARNS, (WAITING, 4)), Span(FIRST, EVALUATION, 0, 4)]
    assert by_time(causes(spans, LEARNS)) == [(NO_EPISODE, 0, 4)]


def test_a_verdict_is_waited_for_wherever_it_is_made():
    judged = row(Lane(REWARD_WORKERS), ("", 10), (VERDICT, 18))
    elsewhere = [each for each in STEP if each.name != VERDICT]
    assert by_time(causes(elsewhere, LEARNS))[-1] == (NO_EPISODE, 14, 20)
    assert by_time(causes(elsewhere + judged, LEARNS))[-2:] == [
        (VERDICT, 14, 18),
        (NO_EPISODE, 18, 20),
    ]
