"""What is written down of trajectories: the credit and the log-probabilities that the loss took."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from ale_jax.config.algo import MismatchHypers
from ale_jax.data.replay import Group
from ale_jax.learn.learner import assemble
from ale_jax.learn.step import TokenUpdate
from ale_jax.records import ReplyKind, SideBranch
from ale_jax.system.tasks import Cursor
from ale_jax.system.trajectory_samples import MOST_MEMBERS, trajectory_samples
from tests.data.make_trajectories import make_trajectory, make_turn
from tests.learn.test_assemble import EQUAL, IPA, MIXED, SHAPE


def updated(made):
    """As if an update had been made: log-probabilities -1, -2, ... along each trajectory, and ten
    times the advantage as credit."""
    updates = []
    for batch in made.batches:
        first_BT = (batch.chunk_BT >= 0) & (batch.position_BT == 2)  # after make_turn's two ids
        count_BT = np.cumsum(batch.chunk_BT >= 0, axis=1)
        before_BT = np.maximum.accumulate(np.where(first_BT, count_BT - 1, 0), axis=1)
        updates.append(TokenUpdate(-(count_BT - before_BT).astype(float), 10 * batch.advantage_BT))
    return dataclasses.replace(made, read_updates=lambda: updates)


def recorded(groups, algo=IPA, step=5, hp=IPA.mismatch):
    made = updated(assemble(groups, algo, SHAPE))
    report = SimpleNamespace(cursor=Cursor(step=step), groups=groups, made=made)
    return list(trajectory_samples(report, hp))


def test_a_success_and_a_failure_of_one_group_with_their_credit():
    won, lost = recorded([EQUAL, MIXED])
    assert (won.reward, lost.reward) == (1.0, 0.0)
    # As in test_credit: gamma 1/2, the group's mean 1/2.
    assert [turn.advantage for turn in won.turns] == [0.25, 0.5]
    assert won.turns[1].each.advantage == (0.5,) * 3
    assert [turn.advantage for turn in lost.turns] == [-0.25, -0.5]
    assert [turn.credit for turn in lost.turns] == [-2.5, -5.0]
    assert won.turns[1].each.credit == (5.0,) * 3


def test_token_by_token_it_is_what_was_written():
    won, _ = recorded([MIXED])
    first, second = (turn.each for turn in won.turns)
    assert (first.prompt_ids, first.action_ids) == ((1, 2), (3, 4))
    assert first.logp_mu == (-0.03, -0.04)  # make_turn's, as is the next
    assert second.logp_old == (-0.03, -0.035, -0.04)
    assert (first.logp, second.logp) == ((-1.0, -2.0), (-3.0, -4.0, -5.0))


def test_pi_old_is_the_one_that_the_loss_took():
    made = assemble([MIXED], IPA, SHAPE)
    rescored = [dataclasses.replace(b, logp_old_BT=b.logp_old_BT - 1.0) for b in made.batches]
    made = updated(dataclasses.replace(made, batches=rescored))
    report = SimpleNamespace(cursor=Cursor(step=5), groups=[MIXED], made=made)
    won, _ = trajectory_samples(report, IPA.mismatch)
    np.testing.assert_allclose(won.turns[0].each.logp_old, (-1.015, -1.02), atol=1e-6)
    # Of the means: -1.5 - (-1.0175).
    np.testing.assert_allclose(won.turns[0].ratio, np.exp(-0.4825), rtol=1e-5)


def test_whoever_was_not_packed_was_not_trained_on():
    advantage = dataclasses.replace(IPA.advantage, mean="none")  # failures then are worth 0
    won, lost = recorded([MIXED], dataclasses.replace(IPA, advantage=advantage))
    assert won.trained_on and not lost.trained_on
    assert [turn.advantage for turn in lost.turns] == [0.0, 0.0]
    for turn in lost.turns:
        assert turn.credit is turn.ratio is turn.logp_mean is None
        assert turn.each.credit is turn.each.logp is None
    assert lost.turns[0].each.logp_old == (-0.015, -0.02)


def test_a_step_without_an_update_trained_on_nobody():
    made = assemble([MIXED], IPA, SHAPE)  # as while critics warm up
    report = SimpleNamespace(cursor=Cursor(step=5), groups=[MIXED], made=made)
    won, lost = trajectory_samples(report, IPA.mismatch)
    assert not won.trained_on and not lost.trained_on
    assert [turn.advantage for turn in won.turns] == [0.25, 0.5]
    assert won.turns[0].each.credit is None


@pytest.mark.parametrize(
    ("level", "high", "kept"),
    [
        ("chunk", 1.02, [True, False]),
        ("sequence", 1.02, [False, False]),  # exp(0.028) of both
        ("sequence", 1.03, [True, True]),
        ("token", 1.032, [True, True]),  # a token of each is kept
        ("token", 1.018, [True, False]),
    ],
)
def test_the_filter_is_told_as_its_level_says(level, high, kept):
    # make_turn: pi_old / mu of ids 3, 4 is exp(0.015) and exp(0.02), of 6, 7, 8 exp(0.03) to
    # exp(0.04).
    hp = MismatchHypers(filter_level=level, filter_high=high)
    won, _ = recorded([MIXED], hp=hp)
    assert [turn.kept for turn in won.turns] == kept


def test_what_no_filter_saw_is_kept():
    advantage = dataclasses.replace(IPA.advantage, mean="none")
    hp = MismatchHypers(filter_level="chunk", filter_high=1.0)
    won, lost = recorded([MIXED], dataclasses.replace(IPA, advantage=advantage), hp=hp)
    assert [turn.kept for turn in won.turns] == [False, False]
    assert [turn.kept for turn in lost.turns] == [True, True]


def test_an_experts_turns_come_first_and_have_no_credit():
    turns = [make_turn([1, 2], [3, 4]), make_turn([5], [6, 7, 8])]
    began = [
        dataclasses.replace(make_trajectory(0, m, turns, reward=r), num_prefix_turns=1)
        for m, r in ((0, 1.0), (1, 0.0))
    ]
    won, _ = recorded([Group(0, tuple(began))])
    assert won.num_prefix_turns == 1
    assert won.turns[0].each.action_ids == (3, 4) and not won.turns[0].kept
    assert won.turns[0].each.advantage == (0.0, 0.0)
    assert won.turns[1].each.logp == (-1.0, -2.0, -3.0)


def test_side_branches_do_not_mix_with_the_longest_conversation():
    won, lost = MIXED.members
    # More tokens, in fewer turns: it is packed first. It was answered before the others.
    side = SideBranch((make_turn([5, 5], [9] * 12, version=3),))
    turns = tuple(dataclasses.replace(t, number=n) for n, t in enumerate(won.turns, start=1))
    forked = dataclasses.replace(won, turns=turns, side_branches=(side,))
    alone, _ = recorded([MIXED])
    with_side, _ = recorded([dataclasses.replace(MIXED, members=(forked, lost))])
    assert with_side == alone


def test_a_reply_without_credit_is_shown_untrained_among_the_others():
    won, lost = MIXED.members
    cut = dataclasses.replace(make_turn([7], [8, 8], version=3), kind=ReplyKind.CUT)
    longer = dataclasses.replace(won, turns=(won.turns[0], cut, *won.turns[1:]))
    (alone, _), (shown, _) = (
        recorded([dataclasses.replace(MIXED, members=(each, lost))]) for each in (won, longer)
    )
    first, idle, second = shown.turns
    assert (first, second) == alone.turns
    assert (idle.advantage, idle.credit, idle.masked) == (0.0, None, False)
    assert idle.each.logp_old == (-0.04, -0.04)  # make_turn's, as recorded


def test_not_every_step_nor_a_group_of_equals():
    assert recorded([MIXED], step=4) == []
    assert recorded([EQUAL]) == []


def test_of_a_large_group_successes_and_failures_in_turn():
    turns = [make_turn([1], [2])]
    rewards = (1.0, 1.0, 1.0, 1.0, 0.0)
    members = [make_trajectory(0, m, turns, reward=r) for m, r in enumerate(rewards)]
    chosen = recorded([Group(0, tuple(members))])
    assert [sample.reward for sample in chosen] == [1.0, 0.0, 1.0, 1.0]
    assert len(chosen) == MOST_MEMBERS


def test_the_search_begins_at_another_group_each_time():
    other = Group(
        3,
        tuple(
            make_trajectory(3, t.episode.key.member, t.turns, reward=t.episode.reward)
            for t in MIXED.members
        ),
    )
    seeds = [{sample.item for sample in recorded([MIXED, other], step=step)} for step in (5, 10)]
    assert seeds == [{3}, {0}]  # 5 / 5 and 10 / 5, modulo two groups


def test_a_member_with_a_value_that_is_not_finite_is_left_out():
    made = updated(assemble([MIXED], IPA, SHAPE))
    updates = [
        update._replace(credit_BT=np.where(batch.member_BT == 1, np.nan, update.credit_BT))
        for batch, update in zip(made.batches, made.read_updates(), strict=True)
    ]
    made = dataclasses.replace(made, read_updates=lambda: updates)
    report = SimpleNamespace(cursor=Cursor(step=5), groups=[MIXED], made=made)
    (won,) = trajectory_samples(report, IPA.mismatch)
    assert (won.reward, won.turns[1].credit) == (1.0, 5.0)


def test_who_wrote_nothing_is_no_failure_to_learn_from():
    won, lost = MIXED.members
    silent = dataclasses.replace(lost, turns=())
    assert recorded([Group(0, (won, silent))]) == []
