"""Which replies of an episode earn credit, and what becomes of the rewards of the others."""

import dataclasses

import numpy as np
import pytest

from ale_jax.algo.losses import observation_mask
from ale_jax.config.algo import AdvantageHypers, AlgoConfig
from ale_jax.config.credit import FILTERED, JUDGED, PENALISED, CreditHypers
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.replay import Group
from ale_jax.learn.chunks import chunks_of
from ale_jax.learn.learner import assemble
from ale_jax.records import OUTSIDE, UNCREDITED, ReplyKind, SideBranch
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn
from tests.rows import each_row

ROWS = Shape(1, 32, 4)
RETURNS = AlgoConfig(gamma=0.5, advantage=AdvantageHypers("chunk_return"))


def episode(kinds, member=0, reward=1.0, status=Status.FINISHED):
    """Turns of one prompt token and two action tokens, 10 and 11, 20 and 21 ... The last one has
    the episode's reward."""
    turns = []
    for number, kind in enumerate(kinds, start=1):
        turn = make_turn([number], [10 * number, 10 * number + 1])
        turns.append(dataclasses.replace(turn, kind=ReplyKind(kind), number=number - 1))
    turns[-1] = dataclasses.replace(turns[-1], reward=reward)
    return make_trajectory(0, member, turns, reward=reward, status=status)


def learned(made, algo=RETURNS):
    """The step's only batch of a group of `made` and a failure of one turn."""
    step = assemble([Group(0, (made, episode(["action"], 1, 0.0)))], algo, ROWS)
    (batch,) = step.batches
    return batch, step


def test_a_reply_that_the_context_cut_is_not_the_last_chunk():
    made = episode(["action", "action", "cut"], status=Status.TOKEN_LIMIT)
    batch, step = learned(made)
    without, _ = learned(episode(["action", "action"]))
    written = batch.tokens_BT >= 10
    assert batch.chunk_BT[0, :9].tolist() == [-1, 0, 0, -1, 1, 1, -1, UNCREDITED, UNCREDITED]
    # gamma 1/2 and the group's mean 1/2: the last reply that was carried out has all credit.
    assert batch.advantage_BT[0, :9].tolist() == [0, 0.25, 0.25, 0, 0.5, 0.5, 0, 0, 0]
    assert batch.reward_BT[0, :9].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert written[0, 7] and batch.logp_mu_BT[0, 7] == 0
    np.testing.assert_array_equal(
        batch.advantage_BT[batch.chunk_BT >= 0], without.advantage_BT[without.chunk_BT >= 0]
    )
    assert step.minibatches[0].loss_denominator == 6, "tokens of the chunks alone"


def test_a_cut_reply_in_the_middle_is_context_and_no_observation():
    batch, _ = learned(episode(["action", "cut", "action"]))
    ids_T, chunk_T = batch.tokens_BT[0, :9], batch.chunk_BT[0, :9]
    assert ids_T[chunk_T == UNCREDITED].tolist() == [20, 21]
    assert ids_T[chunk_T == 1].tolist() == [30, 31]
    assert set(batch.advantage_BT[0, :9][chunk_T == 0]) == {0.25}, "the second last chunk"
    observed_T = np.asarray(observation_mask(batch.chunk_BT, batch.segment_BT))[0, :9]
    assert ids_T[observed_T].tolist() == [2, 3]
    assert (chunk_T[observed_T] == OUTSIDE).all()


@each_row(
    "kinds, rewards, found",
    [
        (["action", "cut"], [0.0, 1.0], [(0, 1.0)]),
        (["action", "cut", "action"], [0.0, -0.5, 1.0], [(0, -0.5), (2, 1.0)]),
        (["cut", "action"], [-0.5, 1.0], [(1, 1.0)]),  # nothing led to it
        (["cut"], [1.0], []),
    ],
)
def test_the_reward_of_a_reply_without_credit_is_that_of_the_chunk_before(kinds, rewards, found):
    made = episode(kinds)
    turns = [dataclasses.replace(t, reward=r) for t, r in zip(made.turns, rewards, strict=True)]
    chunks = chunks_of(dataclasses.replace(made, turns=tuple(turns)), CreditHypers())
    assert [(chunk.turn, chunk.reward) for chunk in chunks] == found


def test_chunks_are_in_the_order_of_their_replies_and_not_of_their_conversations():
    made = episode(["action", "action"])
    first, last = (dataclasses.replace(t, number=n) for t, n in zip(made.turns, (0, 2)))
    aside = dataclasses.replace(first, number=1)
    made = dataclasses.replace(made, turns=(first, last), side_branches=(SideBranch((aside,)),))
    chunks = chunks_of(made, CreditHypers())
    assert [(chunk.branch, chunk.turn) for chunk in chunks] == [(0, 0), (1, 0), (0, 1)]


def test_the_config_says_which_replies_earn_nothing_and_a_cut_one_never_does():
    made = episode([kind.value for kind in ReplyKind])
    found = {
        uncredited: [made.turns[chunk.turn].kind for chunk in chunks_of(made, hp)]
        for uncredited in ((), ("side",), ("replaced", "side"))
        if (hp := CreditHypers(uncredited=uncredited))
    }
    assert found == {
        (): ["action", "replaced", "side"],
        ("side",): ["action", "replaced"],
        ("replaced", "side"): ["action"],
    }
    assert chunks_of(made, CreditHypers()) == chunks_of(made, hp), "the default"


LIMITS = [status for status in Status if status.value.endswith("_limit")]


@pytest.mark.parametrize("status", [Status.FINISHED, *LIMITS])
def test_an_overlong_episode_is_judged_filtered_or_penalised(status):
    """Of two members, the first ended at the limit with 1; the other failed."""
    made, is_limit = episode(["action", "action"], status=status), status in LIMITS
    found = {}
    for overlong, penalty in ((JUDGED, 0.0), (FILTERED, 0.0), (PENALISED, -0.5)):
        credit = CreditHypers(overlong, penalty)
        advantages = AdvantageHypers("outcome", "group")
        batch, step = learned(made, AlgoConfig(advantage=advantages, credit=credit))
        per_member = [set(batch.advantage_BT[batch.member_BT == m]) - {0.0} for m in (0, 1)]
        found[overlong] = per_member, step.minibatches[0].loss_denominator
    assert found[JUDGED] == ([{0.5}, {-0.5}], 6)
    # Filtered, its outcome stays in the mean of the group, and its tokens are not counted.
    assert found[FILTERED] == (([set(), {-0.5}], 2) if is_limit else found[JUDGED])
    assert found[PENALISED] == (([{0.25}, {-0.25}], 6) if is_limit else found[JUDGED])


@pytest.mark.parametrize(
    ("overlong", "penalty"), [(JUDGED, -0.5), (FILTERED, -1.0), (PENALISED, 0.0)]
)
def test_a_penalty_and_its_absence_must_be_meant(overlong, penalty):
    with pytest.raises(ValueError, match=f"overlong_penalty {penalty} does not fit"):
        CreditHypers(overlong, penalty)


def test_the_return_of_a_cut_trajectory_is_spread_over_its_chunks_by_tokens_too():
    """REINFORCE: the outcome, judged after the cut reply, is the last chunk's."""
    returns = AlgoConfig(advantage=AdvantageHypers("token_return", mean="none"), loss=LossHypers())
    batch, _ = learned(episode(["action", "cut"]), returns)
    assert batch.advantage_BT[0, :6].tolist() == [0, 1, 1, 0, 0, 0]
