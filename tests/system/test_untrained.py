"""A run whose steps leave the policy as it was says so, and why."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.data.staleness import Drop
from ale_jax.entry import train_in
from ale_jax.errors import RunFailed
from ale_jax.monitor.evaluations import write_summary
from ale_jax.system.hosts.commands import Alone
from ale_jax.system.step_metrics import StepReport, step_metrics
from ale_jax.system.tasks import Cursor
from ale_jax.system.untrained import UntrainedSteps
from tests.data.make_trajectories import make_trajectory, make_turn
from tests.monitor.fake_run import SUMMARY
from tests.rows import each_row
from tests.system.configs import smoke_config
from tests.system.test_step_metrics import SUMS

IDLE = SUMS | {"grad_norm": np.float32(0), "skipped_updates": np.False_}
LEARNS = SUMS | {"skipped_updates": np.False_}


def step(*updates, rewards=((0.0, 0.0),), batches=None):
    groups = [
        Group(g, tuple(make_trajectory(g, m, [make_turn([1], [2])], reward=r) for m, r in members))
        for g, members in enumerate(map(list, map(enumerate, rewards)))
    ]
    batches = list(updates) if batches is None else batches
    made = SimpleNamespace(samples=[], batches=batches)
    return StepReport(Cursor(step=1), groups, made, list(updates), {}, 0.1, 0.2)


def told(*steps):
    """The details of the events after the given steps, each with the number of the last one."""
    events = []
    watch = UntrainedSteps(2, lambda kind, detail, **fields: events.append((kind, detail)))
    for each in steps:
        watch.note(each, step_metrics(each))
    assert {kind for kind, _ in events} <= {"nothing_trained"}
    return [detail for _, detail in events]


def test_the_first_of_a_few_steps_in_a_row_is_told_and_then_ever_more_seldom():
    assert told(*[step()] * 4) == []
    (once,) = told(*[step()] * 9)
    assert once.startswith("5 steps in a row had no gradient: ")
    assert [detail.split()[0] for detail in told(*[step()] * 40)] == ["5", "10", "20", "40"]


def test_a_step_with_a_gradient_begins_the_count_anew():
    assert told(*[step()] * 4, step(LEARNS), *[step()] * 4) == []
    assert told(*[step(IDLE, LEARNS)] * 9) == []  # one of its updates has one


def test_steps_in_which_critics_learn_alone_are_as_the_config_asks():
    assert told(*[step(batches=["a batch"])] * 9) == []


@each_row(
    "report, why",
    [
        (step(), "all 2 episodes of the last one earned 0, and no task is solved"),
        (step(rewards=((1.0, 1.0),)), "earned 1, and every task is solved: play harder families"),
        (step(rewards=((0.0, 0.0), (1.0, 1.0))), "in each group all episodes earned the same"),
        (step(IDLE | {"masked_tokens": np.float32(8)}), "the mismatch filter masks every token"),
        (step(IDLE | {"clipped_tokens": np.float32(8)}), "every token is clipped"),
        (step(LEARNS | {"skipped_updates": np.True_}), "loss or gradient was not finite"),
        (step(IDLE), "see algo.loss.negative_weight"),
    ],
)
def test_the_likely_reason_is_named(report, why):
    (detail,) = told(*[report] * 5)
    assert why in detail


def test_a_step_that_waits_for_unequal_outcomes_is_told_by_the_groups_that_it_drops():
    events = []
    watch = UntrainedSteps(2, lambda kind, detail, **fields: events.append(detail))
    for number in range(20):
        for reason in (Drop.EQUAL, Drop.STALE):
            watch.note_dropped(DroppedGroup(number, reason, ()))
    assert [detail.split()[0] for detail in events] == ["10", "20"]
    assert "rl.dynamic_sampling waits" in events[0]


def summary(**changes):
    return dataclasses.replace(SUMMARY, **changes)


def test_a_run_that_trained_nothing_at_all_has_failed_also_when_it_is_asked_again(tmp_path):
    def ends_with(written):
        run = lambda config, workdir, stop, processes: write_summary(workdir.path, written)  # noqa: E731
        train_in(tmp_path / "run", smoke_config(), False, True, Alone(), run)

    ends_with(SUMMARY)
    ends_with(summary(rl_steps_trained=0))  # the warm start has trained
    ends_with(summary(rl_steps_trained=0, rl_steps=0, warm_start_steps=0))  # as asked
    nothing = summary(rl_steps_trained=0, warm_start_steps=0)
    with pytest.raises(RunFailed, match=r"none of the 160 steps .* had a gradient"):
        ends_with(nothing)
    with pytest.raises(RunFailed, match="nothing was trained"):
        train_in(tmp_path / "run", smoke_config(), False, False, Alone(), None)
