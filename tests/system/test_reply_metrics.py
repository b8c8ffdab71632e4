"""Figures of how episodes ended and of their conversations, on episodes that can be counted."""

import dataclasses

import pytest

from ale_jax.records import CallCounts, ReplyKind, SideBranch
from ale_jax.status import Status
from ale_jax.system.reply_metrics import reply_metrics, truncation_metrics
from tests.data.make_trajectories import make_trajectory, make_turn

TURN = make_turn([1], [2])
CUT, REPLACED = (
    dataclasses.replace(TURN, kind=kind) for kind in (ReplyKind.CUT, ReplyKind.REPLACED)
)


def episode(*conversations, **counts):
    longest, *side = conversations
    made = make_trajectory(0, 0, longest)
    branches = tuple(SideBranch(tuple(turns), shared) for turns, shared in side)
    return dataclasses.replace(made, side_branches=branches, calls=CallCounts(**counts))


def test_the_share_of_each_limit_that_ended_episodes():
    ends = [Status.FINISHED, Status.TOKEN_LIMIT, Status.TURN_LIMIT, Status.TOKEN_LIMIT]
    found = truncation_metrics([make_trajectory(0, 0, status=status) for status in ends])
    assert found == {"truncated": 0.75, "truncated/token_limit": 0.5, "truncated/turn_limit": 0.25}
    assert truncation_metrics([]) == {"truncated": 0.0}


def test_conversations_and_what_became_of_replies_are_means_over_episodes():
    one = episode([TURN, CUT, TURN], forks=1, lost=2)
    two = episode([TURN, TURN], ([TURN, REPLACED], 1), ([TURN], 0), edited=3, left_out=10)
    found = reply_metrics([one, two])
    assert found == {
        "replies": 3.5,
        "branches": 2.0,
        "forks": 0.5,
        "edits": 1.5,
        "lost_replies": 1.0,
        "left_out_tokens": 5.0,
        "replies_cut": pytest.approx(1 / 7),
        "replies_replaced": pytest.approx(1 / 7),
        "replies_side": 0.0,
        # After the first, 1 and 2 replies were carried out. One of them begins a conversation.
        "branching": pytest.approx(1 / 3),
    }


def test_losers_of_best_of_n_are_no_rewritten_history():
    found = reply_metrics([episode([TURN, TURN, TURN], *[([TURN, REPLACED], 1)] * 6)])
    assert (found["branches"], found["branching"]) == (7.0, 0.0)
