"""A step's batches: who teaches, who only counts."""

import dataclasses

import jax
import numpy as np

from ale_jax.algo.baselines import scale_token_advantages
from ale_jax.config.algo import AdvantageHypers, AlgoConfig, MismatchHypers
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.packing import Sample
from ale_jax.data.replay import Group
from ale_jax.learn import token_credit
from ale_jax.learn.learner import assemble
from ale_jax.learn.token_credit import scale_advantages
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn

SHAPE = Shape(microbatch_rows=2, pack_length=16, chunks_per_pack=4)
IPA = AlgoConfig(
    "ipa",
    0.5,
    "sampler",
    AdvantageHypers("chunk_return", "group", "none"),
    LossHypers("topr", "chunk", ratio_cap=1.0),
    MismatchHypers(),
)


def _member(group, member, reward, status=Status.FINISHED):
    turns = [make_turn([1, 2], [3, 4]), make_turn([5], [6, 7, 8], reward=reward or 0.0)]
    return make_trajectory(group, member, turns, status=status, reward=reward)


MIXED = Group(0, (_member(0, 0, 1.0), _member(0, 1, 0.0)))
EQUAL = Group(1, (_member(1, 0, 1.0), _member(1, 1, 1.0)))
ONE_LOST = Group(2, (_member(2, 0, 1.0), _member(2, 1, None, Status.SANDBOX_LOST)))


def _written(step):
    return sum(int((b.chunk_BT >= 0).sum()) for b in step.batches)


def test_groups_of_equals_are_counted_and_not_computed():
    step = assemble([MIXED, EQUAL], IPA, SHAPE)
    assert step.minibatches[0].loss_denominator == 4 * 5  # policy tokens of all four
    np.testing.assert_allclose(step.samples[0].advantage_C, [0.25, 0.5])  # gamma (R - 1/2), R - 1/2
    np.testing.assert_allclose(step.samples[1].advantage_C, [-0.25, -0.5])
    assert _written(step) == 2 * 5


def test_groups_of_equals_are_computed_where_the_loss_has_other_terms():
    for loss in (
        LossHypers("vanilla", kl_weight=0.1, kl_estimator="k2"),
        LossHypers("vanilla", entropy_weight=0.1),
        LossHypers("kimi", tau=0.1),
        LossHypers("vanilla", observation_weight=0.1),
    ):
        step = assemble([MIXED, EQUAL], dataclasses.replace(IPA, loss=loss), SHAPE)
        assert (_written(step), len(step.samples)) == (4 * 5, 4)


def test_what_the_system_lost_neither_teaches_nor_counts():
    step = assemble([ONE_LOST, MIXED], IPA, SHAPE)
    assert len(step.samples) == 2  # the survivor of the first group is equal to its baseline
    assert step.minibatches[0].loss_denominator == 3 * 5


def test_grpo_gives_all_chunks_of_a_trajectory_the_same():
    grpo = dataclasses.replace(
        IPA,
        gamma=1.0,
        advantage=AdvantageHypers("outcome", "group", "group"),
        loss=LossHypers("vanilla", aggregation="constant", constant_tokens=7),
    )
    step = assemble([MIXED], grpo, SHAPE)
    np.testing.assert_allclose([s.advantage_C for s in step.samples], [[1, 1], [-1, -1]], rtol=1e-4)
    assert step.minibatches[0].loss_denominator == 2 * 7


def test_a_balanced_group_counts_the_tokens_of_its_chunks():
    """The same chunks in both members: the negative side weighs what the positive does. With a
    longer reply in the failure it would weigh more."""
    advantage = dataclasses.replace(IPA.advantage, balance="group")
    plain, balanced = (
        assemble([MIXED], algo, SHAPE)
        for algo in (IPA, dataclasses.replace(IPA, advantage=advantage))
    )
    for a, b in zip(plain.samples, balanced.samples, strict=True):
        np.testing.assert_array_equal(a.advantage_C, b.advantage_C)
    wordy = make_trajectory(0, 1, [make_turn([1, 2], [3, 4]), make_turn([5], [6] * 9)], reward=0.0)
    step = assemble(
        [Group(0, (MIXED.members[0], wordy))], dataclasses.replace(IPA, advantage=advantage), SHAPE
    )
    up, down = (sum(s.advantage_C * [len(t.action_ids) for t in s.turns]) for s in step.samples)
    np.testing.assert_allclose([up, down], [2.0, -2.0], rtol=1e-6)  # 1/4 * 2 + 1/2 * 3


def test_a_step_in_which_nothing_teaches_has_no_batch():
    step = assemble([EQUAL], IPA, SHAPE)
    assert (step.batches, step.samples) == ([], [])


def test_credit_of_tokens_is_on_the_batches_over_the_whole_step():
    advantage = AdvantageHypers("token_return", "none", "none", failure_reward=-1.0)
    algo = dataclasses.replace(IPA, advantage=advantage, loss=LossHypers("vanilla"))
    step = assemble([MIXED, EQUAL], algo, Shape(1, 16, 4))
    assert len(step.batches) == 2  # of two trajectories each
    # Five tokens of which the last is rewarded, discounted by one half each.
    won, lost = 0.5 ** np.arange(4, -1, -1), -(0.5 ** np.arange(4, -1, -1))
    found = [b.advantage_BT[b.chunk_BT >= 0] for b in step.batches]
    np.testing.assert_allclose(found, [[*won, *lost], [*won, *won]])

    of_batch = AdvantageHypers("token_return", "batch", "none", failure_reward=-1.0)
    step = assemble([MIXED, EQUAL], dataclasses.replace(algo, advantage=of_batch), Shape(1, 16, 4))
    mean = np.mean([*won, *lost, *won, *won])
    again = [b.advantage_BT[b.chunk_BT >= 0] for b in step.batches]
    np.testing.assert_allclose(again, np.array(found) - mean, atol=1e-6)
    assert all(not b.advantage_BT[b.chunk_BT < 0].any() for b in step.batches)

    of_group = AdvantageHypers("gae", "group", "none")  # whoever wrote them
    again = scale_advantages(step.batches, step.table.tag_G, of_group)
    for batch in again:
        for group in np.unique(batch.group_BT[batch.chunk_BT >= 0]):
            mine = (batch.group_BT == group) & (batch.chunk_BT >= 0)
            np.testing.assert_allclose(batch.advantage_BT[mine].mean(), 0.0, atol=1e-6)
    assert scale_advantages([], step.table.tag_G, of_group) == []


def test_steps_of_other_sizes_are_normalised_by_one_program_and_alike(monkeypatch):
    traces = []

    def traced(*args):
        traces.append(args)
        return scale_token_advantages(*args)

    advantage = AdvantageHypers("token_return", "none", "none")
    algo = dataclasses.replace(IPA, advantage=advantage, loss=LossHypers("vanilla"))
    groups = [MIXED, *(dataclasses.replace(EQUAL, index=number) for number in (1, 2, 3))]
    step = assemble(groups, algo, Shape(1, 8, 2))
    hp, tag_G = AdvantageHypers("token_return", "batch", "batch"), step.table.tag_G
    jitted = jax.jit(traced, static_argnums=4)
    monkeypatch.setattr(token_credit, "_scale_token_advantages", jitted)
    for count in (5, 6, 7):
        batches = step.batches[:count]
        own_t = np.concatenate([b.advantage_BT[b.chunk_BT >= 0] for b in batches])
        found = scale_advantages(batches, tag_G, hp)
        found_t = np.concatenate([b.advantage_BT[b.chunk_BT >= 0] for b in found])
        np.testing.assert_allclose(found_t, (own_t - own_t.mean()) / own_t.std(), atol=1e-4)
    assert len(traces) == 1


def test_what_is_imitated_is_learned_beside_the_rest_and_counted_nowhere():
    turns = tuple(_member(0, 0, 1.0).turns)
    weights = np.array([0.25, 0.5], np.float32)
    imitated = Sample(turns, np.zeros(0, np.float32), num_prefix_turns=2, imitate_P=weights)
    without, step = assemble([MIXED], IPA, SHAPE), assemble([MIXED], IPA, SHAPE, [imitated])
    assert step.minibatches[0].loss_denominator == without.minibatches[0].loss_denominator == 2 * 5
    assert _written(step) == _written(without)
    weight = np.concatenate([b.imitate_BT[b.imitate_BT != 0] for b in step.batches])
    np.testing.assert_array_equal(np.sort(weight), [0.25, 0.25, 0.5, 0.5, 0.5])
    (alone,) = assemble([EQUAL], IPA, SHAPE, [imitated]).batches  # all that there is to learn
    assert (alone.chunk_BT == -1).all() and (alone.imitate_BT != 0).sum() == 5


def test_minibatches_divide_what_a_step_teaches_and_count_their_own_tokens():
    groups = [MIXED, EQUAL, ONE_LOST, MIXED]
    whole, step = assemble(groups, IPA, SHAPE), assemble(groups, IPA, SHAPE, minibatches=2)
    first, second = step.minibatches
    assert [s.tolist() for s in map(_credit, whole.samples)] == [
        s.tolist() for s in map(_credit, step.samples)
    ]
    assert step.batches[first.batches] + step.batches[second.batches] == step.batches
    assert [set(_groups(step.batches[m.batches])) for m in (first, second)] == [{0}, {3}]
    assert (first.loss_denominator, second.loss_denominator) == (3 * 5, 4 * 5)
    # What is imitated is dealt out, too; nothing else of the second share is learned here.
    imitated = [Sample.of(t, np.zeros(2, np.float32), group=9) for t in EQUAL.members]
    first, second = assemble(groups[:3], IPA, SHAPE, imitated, minibatches=2).minibatches
    assert (first.loss_denominator, second.loss_denominator) == (3 * 5, 2 * 5)


def _credit(sample):
    return sample.advantage_C


def _groups(batches):
    return np.concatenate([b.group_BT[b.chunk_BT >= 0] for b in batches]).tolist()
