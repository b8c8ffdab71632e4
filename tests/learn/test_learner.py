"""What a learner gives the programs of its trainer. Only these programs are not the real ones."""

import dataclasses

import numpy as np

from ale_jax.config.critics import CriticsHypers
from ale_jax.config.learn import LearnConfig
from ale_jax.data.replay import Group
from ale_jax.learn.finite import BROKEN, SKIPPED
from ale_jax.learn.learner import Learner, LearnerOptions
from benchmarks.laboratory.credit import arm
from tests.data.make_trajectories import make_trajectory, make_turn

GROUPS, MEMBERS, CHUNKS = 2, 4, 3


class Trainer:
    """Remembers the batches of each update. Its critics say the same everywhere."""

    warming_up = False

    def begin_step(self, *, version):
        self.updates = []

    def token_updates(self):
        return [batch.chunk_BT for batches, _ in self.updates for batch in batches]

    def logp(self, batches, *, weights):
        return [np.zeros(batch.chunk_BT.shape, np.float32) for batch in batches]

    def values(self, batches):
        return [np.full((1, *batch.chunk_BT.shape), 0.5, np.float32) for batch in batches]

    def update(self, batches, *, loss_denominator):
        self.updates.append((batches, loss_denominator))
        return {}

    def update_critic(self, batches, *, number, tokens):
        return {"tokens": tokens, "squares": 0.0, "grad_norm": 0.0, SKIPPED: 0, BROKEN: 0}


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


def learn(trainer, preset, lam=1.0, groups=GROUPS, **updates):
    """A step with successes and failures. updates: how many are made of it."""
    algo, shape = arm(preset).algo, {"pack_length": 32, "chunks_per_pack": 16}
    critics = CriticsHypers(count=int(algo.advantage.from_critics), lam=lam)
    learn = LearnConfig(microbatch_rows=4, **shape, **updates)
    groups = [
        Group(group, tuple(_member(group, member) for member in range(MEMBERS)))
        for group in range(groups)
    ]
    return Learner(LearnerOptions(algo, critics, False, learn), trainer).learn(groups, (), 0)


def advantages(preset, lam):
    """Of each token of a step."""
    trainer = Trainer()
    learn(trainer, preset, lam)
    (batches, _), *_ = trainer.updates
    return np.stack([batch.advantage_BT for batch in batches])


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


def test_each_epoch_has_all_minibatches_and_each_of_them_every_nth_group():
    trainer = Trainer()
    step, updates, _ = learn(trainer, "grpo", groups=5, minibatches=2, epochs=3)
    assert len(updates) == 2 * 3
    groups = [
        {int(g) for b in batches for g in b.group_BT[b.chunk_BT >= 0]}
        for batches, _ in trainer.updates
    ]
    assert groups == [{0, 2, 4}, {1, 3}] * 3
    written = MEMBERS * CHUNKS * 2  # tokens of a group
    assert [denominator for _, denominator in trainer.updates] == [3 * written, 2 * written] * 3
    # Credit compares all groups, and what is displayed is the first update with each batch.
    whole, _, _ = learn(Trainer(), "grpo", groups=5)
    alike = sorted(tuple(s.advantage_C) for s in whole.samples)
    assert sorted(tuple(s.advantage_C) for s in step.samples) == alike
    assert len(step.read_updates()) == len(step.batches)


def test_a_minibatch_without_a_gradient_makes_no_update():
    trainer = Trainer()
    _, updates, _ = learn(trainer, "grpo", groups=2, minibatches=4)
    assert len(updates) == 2
