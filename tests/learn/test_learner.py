"""What a learner gives the programs of its trainer. Only these programs are not the real ones."""

import dataclasses

import numpy as np

from ale_jax.config.critics import CriticsHypers
from ale_jax.config.learn import Shape
from ale_jax.data.replay import Group
from ale_jax.learn.finite import SKIPPED
from ale_jax.learn.learner import Learner, LearnerOptions
from benchmarks.laboratory.credit import arm
from tests.data.make_trajectories import make_trajectory, make_turn

GROUPS, MEMBERS, CHUNKS = 2, 4, 3


class Trainer:
    """Remembers the batches of the last update. Its critics say the same everywhere."""

    warming_up = False
    token_updates = list

    def begin_step(self, *, version):
        pass

    def logp(self, batches, *, weights):
        return [np.zeros(batch.chunk_BT.shape, np.float32) for batch in batches]

    def values(self, batches):
        return [np.full((1, *batch.chunk_BT.shape), 0.5, np.float32) for batch in batches]

    def update(self, batches, *, loss_denominator):
        self.batches = batches
        return {}

    def update_critic(self, batches, *, number, tokens):
        return {"tokens": tokens, "squares": 0.0, "grad_norm": 0.0, SKIPPED: 0}


class Recorder(Trainer):
    """Remembers who was asked, and who learned."""

    def __init__(self, warming_up):
        self.warming_up, self.calls = warming_up, []

    def values(self, batches):
        self.calls.append("values")
        return super().values(batches)

    def update(self, batches, *, loss_denominator):
        self.calls.append("update")
        return super().update(batches, loss_denominator=loss_denominator)

    def update_critic(self, batches, *, number, tokens):
        self.calls.append("update_critic")
        return super().update_critic(batches, number=number, tokens=tokens)


def learn(trainer, preset, lam):
    """A step with successes and failures."""
    critics = CriticsHypers(count=1, lam=lam)
    options = LearnerOptions(arm(preset).algo, critics, False, Shape(4, 32, 16))
    groups = [
        Group(group, tuple(_member(group, member) for member in range(MEMBERS)))
        for group in range(GROUPS)
    ]
    Learner(options, trainer).learn(groups, (), 0)


def advantages(preset, lam):
    """Of each token of a step."""
    trainer = Trainer()
    learn(trainer, preset, lam)
    return np.stack([batch.advantage_BT for batch in trainer.batches])


def _member(group, member):
    reward = float(member % 2)
    turns = [make_turn([1, 2], [3, 4]) for _ in range(CHUNKS)]
    turns[-1] = dataclasses.replace(turns[-1], reward=reward)
    return make_trajectory(group, member, turns, reward=reward)


def test_a_preset_that_blends_does_not_trust_critics_that_know_nothing():
    blended, trusting = advantages("blended_topr", 0.5), advantages("turn_topr", 0.5)
    np.testing.assert_array_equal(blended, advantages("turn_topr", 1.0))
    assert not np.allclose(blended, trusting, atol=0.1)


def test_critics_are_asked_before_they_learn_and_learn_alone_while_they_warm_up():
    for warming_up, calls in (
        (False, ["values", "update", "update_critic"]),
        (True, ["values", "update_critic"]),
    ):
        trainer = Recorder(warming_up)
        learn(trainer, "turn_topr", 1.0)
        assert trainer.calls == calls
