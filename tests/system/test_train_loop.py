"""The train loop where it waits, and where updates come to nothing."""

import itertools

import jax.numpy as jnp
import pytest

from ale_jax.data.staleness import Drop, StalenessGate
from ale_jax.errors import RunFailed
from ale_jax.learn import critics
from ale_jax.learn.critic_credit import CRITIC_SKIPPED
from ale_jax.learn.finite import SKIPPED
from ale_jax.system.tasks import Cursor, GroupStream
from ale_jax.system.train_loop import FAILED_STEPS, take_groups
from tests.system.in_process import train


class FailingRollouts:
    """In place of a buffer: each wait ends with `count` groups that had no valid episode."""

    def __init__(self, gate, count, good_after=None):
        self._gate, self._count, self._good_after, self._waits = gate, count, good_after, 0

    def take(self, timeout):
        self._waits += 1
        for group in range(self._count):
            self._gate.admit(group)
            self._gate.drop(group, Drop.FAILED)
        return ["a step's groups"] if self._waits == self._good_after else []


def _nothing():
    pass


def test_a_run_in_which_nothing_can_be_judged_ends_and_says_why():
    gate = StalenessGate(alpha=0.0, groups_per_step=2)
    with pytest.raises(RuntimeError, match=r"no episode that could be judged.*malformed_limit"):
        take_groups(FailingRollouts(gate, count=2), _nothing, gate)
    assert gate.counts()["dropped_failed"] == 2 * (FAILED_STEPS + 1)
    # Those of the steps before are not held against the next one.
    assert take_groups(FailingRollouts(gate, 2, good_after=FAILED_STEPS), _nothing, gate)


def test_groups_that_a_checkpoint_left_open_are_still_open_until_they_are_asked_for():
    stream = GroupStream(Cursor(groups=(10, 11, 13), next_group=14))
    assert (next(stream), stream.left_open, stream.next_group) == (10, (11, 13), 14)
    assert [next(stream) for _ in range(3)] == [11, 13, 14]
    assert (stream.left_open, stream.next_group) == ((), 15)


def test_critics_whose_updates_are_not_finite_end_the_run(monkeypatch):
    whole = critics.critic_loss

    def not_finite(*arrays):
        loss, sums = whole(*arrays)
        return loss * jnp.nan, sums

    monkeypatch.setattr(critics, "critic_loss", not_finite)
    with pytest.raises(RunFailed, match=r"step 3: 3 steps .* in a row .*critics\.optimizer"):
        train(6, "ppo", critics={"warmup_steps": 9, "epochs": 2})


def test_a_critic_that_skips_some_updates_of_each_step_does_not_end_the_run(monkeypatch):
    whole, every_second = critics.Critics.update, itertools.cycle([True, False])

    def update(*args):
        return whole(*args) | {SKIPPED: next(every_second)}

    monkeypatch.setattr(critics.Critics, "update", update)
    _, _, reports = train(4, "ppo", critics={"warmup_steps": 9, "epochs": 2})
    assert [report.extra[CRITIC_SKIPPED] for report in reports] == [1] * 4
