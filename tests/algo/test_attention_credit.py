"""Attention AttentionStatistics's credit, by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.attention_credit import (
    AttentionStatistics,
    amplify,
    coupled_share,
    credit_factor,
    response_ranks,
    top_tokens,
    trajectory_statistics,
    waad_change,
)
from ale_jax.config.attention_credit import AttentionCreditHypers
from tests.rows import each_row

KEY = jax.random.key(0)
ONE = np.ones((1, 1), int)  # trajectory in the row


def _row(*values, kind=np.float32):
    return np.array([values], kind)


def test_heads_are_split_by_each_trajectorys_own_reach():
    # Four heads, a share of 0.3: one local, one global. In segment 1 head 0 looks back least (1 on
    # average over its two policy tokens) and head 1 most; in segment 2 it is the other way round.
    # Token 0 is no response: what heads do there (100) does not count.
    segment_BT, chunk_BT = _row(1, 1, 1, 2, 2, kind=int), _row(-1, 0, 0, -1, 1, kind=int)
    distance_BXT = np.array([[[100, 1, 1, 0, 9], [0, 5, 7, 99, 1], [3] * 5, [4] * 5]], np.float32)
    waad_BXT = np.array([[[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [0] * 5, [0] * 5]], np.float32)
    fai_BXT = waad_BXT / 10
    found = trajectory_statistics(distance_BXT, waad_BXT, fai_BXT, chunk_BT, segment_BT, 0.3, 2)
    np.testing.assert_allclose(found.waad_BT, [[1, 2, 3, 9, 10]])
    np.testing.assert_allclose(found.fai_BT, [[0.6, 0.7, 0.8, 0.4, 0.5]])
    np.testing.assert_allclose(found.delta_BT, [[0, 1, 0, 0, 0]])


def test_sets_of_several_heads_are_averaged():
    distance_BXT = np.array([[[1], [2], [3], [4]]], np.float32)
    waad_BXT = np.array([[[10], [20], [40], [80]]], np.float32)
    one = np.array([[1]])
    found = trajectory_statistics(distance_BXT, waad_BXT, waad_BXT, one - 1, one, 0.5, 1)
    assert found.waad_BT == 15 and found.fai_BT == 60


def test_a_single_head_is_local_and_global():
    x_BXT, one = np.full((1, 1, 1), 3.0, np.float32), np.array([[1]])
    found = trajectory_statistics(x_BXT, x_BXT, x_BXT, one - 1, one, 0.3, 1)
    assert found.waad_BT == 3 and found.fai_BT == 3


def test_the_change_stays_within_a_chunk():
    waad_BT = _row(1, 4, 6, 100, 3, 2)
    chunk_BT = _row(0, 0, 0, -1, 1, 1, kind=int)
    np.testing.assert_allclose(waad_change(waad_BT, chunk_BT), [[3, 2, 0, 0, 1, 0]])


SEGMENT = _row(1, 1, 1, 1, 1, 1, 2, 2, 2, 0, kind=int)
CHUNK = _row(-1, 0, 0, 0, 0, 0, -1, 1, 1, -1, kind=int)
VALUE = _row(99, 5, 1, 5, 2, 0, 99, 7, 8, 99)


def test_ranks_are_among_a_trajectorys_policy_tokens():
    rank_BT, size_BT = response_ranks(VALUE, CHUNK, SEGMENT)
    response_BT = CHUNK >= 0
    np.testing.assert_array_equal(rank_BT[response_BT], [0, 3, 1, 2, 4, 1, 0])
    np.testing.assert_array_equal(size_BT[response_BT], [5, 5, 5, 5, 5, 2, 2])


def test_the_top_share_is_of_each_trajectory():
    # 0.4 of 5 tokens are 2; of 2 tokens 0.8, so 1.
    top_BT = top_tokens(VALUE, CHUNK, SEGMENT, 0.4)
    np.testing.assert_array_equal(top_BT, _row(0, 1, 0, 1, 0, 0, 0, 0, 1, 0, kind=bool))


def test_where_nothing_was_measured_nothing_is_chosen():
    assert not top_tokens(np.zeros_like(VALUE), CHUNK, SEGMENT, 0.4).any()
    top_BT = top_tokens(VALUE, CHUNK, SEGMENT, 1.0)
    np.testing.assert_array_equal(top_BT, (CHUNK >= 0) & (VALUE > 0))


def test_one_token_at_least_is_chosen():
    np.testing.assert_array_equal(top_tokens(VALUE, CHUNK, SEGMENT, 0.0).sum(), 2)


def test_local_and_global_credit_by_hand():
    hp = AttentionCreditHypers(credit="local", amplification=1.5, top_share=0.4)
    statistics = AttentionStatistics(waad_BT=VALUE * 0, fai_BT=VALUE[:, ::-1], delta_BT=VALUE)
    local_BT = credit_factor(statistics, CHUNK, SEGMENT, hp, KEY)
    np.testing.assert_allclose(local_BT, _row(1, 1.5, 1, 1.5, 1, 1, 1, 1, 1.5, 1))
    # Reversed: 99 8 7 99 0 2 5 1 5 99; of tokens 1-5 the top two are 3 and 1, of 7-8 it is 8.
    global_BT = credit_factor(
        statistics, CHUNK, SEGMENT, dataclasses.replace(hp, credit="global"), KEY
    )
    np.testing.assert_allclose(global_BT, _row(1, 1.5, 1, 1.5, 1, 1, 1, 1, 1.5, 1))


def test_random_credit_chooses_as_many_tokens_as_the_others_and_others_by_another_key():
    segment_BT, chunk_BT = np.ones((1, 200), int), np.zeros((1, 200), int)
    hp, zeros_BT = (
        AttentionCreditHypers(credit="random", amplification=2.0),
        np.zeros((1, 200), np.float32),
    )
    drawn = [
        credit_factor(
            AttentionStatistics(zeros_BT, zeros_BT, zeros_BT), chunk_BT, segment_BT, hp, key
        )
        for key in (KEY, KEY, jax.random.key(1))
    ]
    assert [(each == 2.0).sum() for each in drawn] == [80] * 3  # 0.4 of 200
    assert set(np.unique(drawn[0])) == {1.0, 2.0}
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_coupled_shares_by_hand():
    chunk_BT = _row(0, 0, 0, 0, 0, 0, 0, 1, 1, kind=int)
    delta_BT = _row(0, 3, 5, 0, 0, 0, 4, 0, 0)
    # Token 3: 5 is one before it, 3 two before. Token 5: with k = 3 the 5 is three before it, with
    # k = 2 nothing is, and it is free. Token 6 is far. Token 7 begins a chunk: the 4 is of another.
    near_BT = _row(0, 0, 0, 1, 0, 1, 0, 1, 0, kind=bool)
    far_BT = _row(0, 0, 0, 0, 0, 0, 1, 0, 0, kind=bool)
    found = coupled_share(near_BT, far_BT, delta_BT, chunk_BT, ONE, 3, 0.4)
    np.testing.assert_allclose(found, _row(0, 0, 0.4, 0.6, 0, 0.6, 1, 1, 0))
    found = coupled_share(near_BT, far_BT, delta_BT, chunk_BT, ONE, 2, 0.25)
    np.testing.assert_allclose(found, _row(0, 0, 0.25, 0.75, 0, 1, 1, 1, 0))


def test_the_nearest_of_equals_introduces_and_an_anchor_may_introduce_another():
    chunk_BT, delta_BT = np.zeros((1, 4), int), _row(2, 2, 0, 0)
    near_BT, far_BT = _row(0, 0, 1, 0, kind=bool), _row(0, 1, 0, 0, kind=bool)
    found = coupled_share(near_BT, far_BT, delta_BT, chunk_BT, ONE, 3, 0.4)
    np.testing.assert_allclose(found, _row(0, 1.4, 0.6, 0))


def test_nobody_introduces_the_anchor_of_another_trajectory():
    # The second one's prompt is a single token, and its chunk has the number of the first one's.
    chunk_BT, segment_BT = _row(0, 0, -1, 0, 0, kind=int), _row(1, 1, 2, 2, 2, kind=int)
    near_BT, far_BT = _row(0, 0, 0, 1, 0, kind=bool), np.zeros((1, 5), bool)
    found = coupled_share(near_BT, far_BT, _row(0, 5, 0, 0, 0), chunk_BT, segment_BT, 3, 0.4)
    np.testing.assert_allclose(found, _row(0, 0, 0, 1, 0))


def test_of_three_heads_one_is_local_and_one_is_global_at_most():
    segment_BT, chunk_BT = np.ones((1, 2), int), np.zeros((1, 2), int)
    distance_BXT = np.array([[[1, 1], [2, 2], [3, 3]]], np.float32)
    waad_BXT = np.array([[[1, 1], [10, 10], [100, 100]]], np.float32)
    found = trajectory_statistics(distance_BXT, waad_BXT, waad_BXT, chunk_BT, segment_BT, 0.5, 1)
    np.testing.assert_allclose(found.waad_BT, [[1, 1]])
    np.testing.assert_allclose(found.fai_BT, [[100, 100]])


def test_coupled_credit_by_hand():
    # Five policy tokens, two of them chosen by either sign: planned (delta) 2 and 5, anchors (FAI)
    # 3 and 4. WAAD orders them 3 < 1 < 5 < 2 < 4; the lower half (2.5, so 2) is {3, 1}. So 3 is
    # near, and dominated by 2 before it; 4 is far, and free.
    segment_BT, chunk_BT = np.ones((1, 6), int), _row(-1, 0, 0, 0, 0, 0, kind=int)
    statistics = AttentionStatistics(
        waad_BT=_row(0, 2, 4, 1, 5, 3),
        fai_BT=_row(9, 0.1, 0.2, 0.9, 0.8, 0.3),
        delta_BT=_row(0, 1, 9, 2, 3, 4),
    )
    hp = AttentionCreditHypers(credit="coupled")
    found = credit_factor(statistics, chunk_BT, segment_BT, hp, KEY)
    np.testing.assert_allclose(found, _row(1, 1, 1.2, 1.3, 1.5, 1))


def test_only_advantages_that_are_not_negative_are_amplified():
    found = amplify(_row(2, -2, 0, 1), _row(1.5, 1.5, 1.5, 1))
    np.testing.assert_allclose(found, _row(3, -2, 0, 1))
    grad = jax.grad(lambda f: amplify(jnp.float32([2.0]), f).sum())(jnp.float32([1.5]))
    assert grad == 0


@pytest.mark.parametrize("credit", ["local", "global", "coupled"])
def test_packing_two_rows_equals_two_batches(credit):
    draw = np.random.default_rng(0)
    T, hp = 12, AttentionCreditHypers(credit=credit)
    apart = [draw.random((3, 2, 5, T)).astype(np.float32) for _ in range(2)]
    chunk_T = np.array([-1, -1, 0, 0, 0, 0, -1, 1, 1, 1, 1, 1])

    @functools.partial(jax.jit, static_argnames="segments")
    def factor(sums, chunk_BT, segment_BT, segments):
        statistics = trajectory_statistics(*sums, chunk_BT, segment_BT, hp.head_share, segments)
        return credit_factor(statistics, chunk_BT, segment_BT, hp, KEY)

    # Two rows apart; both in one row.
    one = np.ones((2, T), int)
    alone = [factor(sums, np.stack([chunk_T] * 2), one, segments=1) for sums in apart]
    together = np.concatenate(apart, axis=-1)
    both_2T = np.concatenate([chunk_T, np.where(chunk_T < 0, -1, chunk_T + 2)])
    packed = factor(
        together, np.stack([both_2T] * 2), np.repeat([[1, 2]] * 2, T, axis=1), segments=4
    )
    assert (packed > 1).any()
    np.testing.assert_allclose(packed, np.concatenate(alone, axis=1))


@each_row(
    "field, value, message",
    [
        ("credit", "glocal", "credit 'glocal' is unknown: choose one of none, local"),
        ("amplification", 0.5, "amplification 0.5 must be in"),
        ("top_share", 1.5, "top_share 1.5 must be in"),
        ("head_share", 0.6, "a head cannot be both local and global"),
        ("horizon_high", 200, r"horizon_high 200 must be in \[1, 128\]"),
        ("horizon_low", 60, "at most horizon_high"),
        ("window", 0, "window 0 must be in"),
        ("layers", 0, "layers 0 must be in"),
        ("introduction_tokens", 0, "introduction_tokens 0 must be in"),
    ],
)
def test_what_cannot_work_is_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        AttentionCreditHypers(**{field: value})
