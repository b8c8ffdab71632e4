"""Critics whose time steps are chunks: what they learn from, and what their credit becomes."""

import dataclasses

import numpy as np
import pytest

from ale_jax.data.packing import pack_all
from ale_jax.learn.critics import value_batches
from ale_jax.learn.token_credit import returns, scale_advantages, time_steps
from tests.learn.rewarded import SHAPE, rewarded_batches, rewarded_samples
from tests.learn.test_critics import GAMMA, MINI, _critics, _saying, credited_by, gae, learn
from tests.rows import each_row

TURNS = gae("turn_gae")


def at_starts(arrays, batches):
    return np.concatenate([x[time_steps(b, True)] for x, b in zip(arrays, batches, strict=True)])


def drawn_values(batches, critics=2):
    draw = np.random.default_rng(0)
    return [draw.normal(size=(critics, *b.chunk_BT.shape)).astype(np.float32) for b in batches]


def test_returns_are_discounted_once_per_chunk():
    batches = rewarded_batches()
    for batch, return_BT in zip(batches, returns(batches, GAMMA, by_chunk=True), strict=True):
        for b, s in np.argwhere(batch.reward_BT > 0):
            last = batch.chunk_BT[b, s]  # the second of two chunks
            np.testing.assert_array_equal(return_BT[b, batch.chunk_BT[b] == last], 1.0)
            first = return_BT[b, batch.chunk_BT[b] == last - 1]
            np.testing.assert_allclose(first, GAMMA, rtol=1e-6)


def test_critics_learn_at_the_first_tokens_of_chunks_alone():
    batches = rewarded_batches()
    return_BT = returns(batches, GAMMA, by_chunk=True)
    starts = [time_steps(batch, by_chunk=True) for batch in batches]
    every = [
        value_batches(
            batches,
            return_BT,
            [s_BT & (b.member_BT % 2 == number) for s_BT, b in zip(starts, batches, strict=True)],
        )
        for number in (0, 1)
    ]
    own = sum(int(v.own_BT.sum()) for values in every for v in values)
    assert own == sum(len(np.unique(row[row >= 0])) for b in batches for row in b.chunk_BT)
    critics = _critics()
    first = learn(critics, batches, TURNS)["critic_loss"]
    # Of values of 0 the error is the mean square of the returns.
    assert first == pytest.approx((at_starts(return_BT, batches) ** 2).mean(), rel=1e-5)
    for _ in range(29):
        last = learn(critics, batches, TURNS)["critic_loss"]
    assert last < 0.5 * first
    assert credited_by(critics, batches, TURNS)[1]["critic_explained_variance"] > 0.5


def test_all_tokens_of_a_chunk_have_its_advantage_and_its_masks():
    batches = rewarded_batches(groups=8)
    hp = dataclasses.replace(MINI, mask_share=0.25, entropy_share=0.1)
    critics = _saying(_critics(hp), drawn_values(batches))
    credited, figures = credited_by(critics, batches, TURNS)
    chunks = masked = quiet = 0
    for batch in credited:
        for row in range(len(batch.chunk_BT)):
            for chunk in np.unique(batch.chunk_BT[row][batch.chunk_BT[row] >= 0]):
                own = batch.chunk_BT[row] == chunk
                assert len(np.unique(batch.advantage_BT[row, own])) == 1
                assert len(np.unique(batch.entropy_BT[row, own])) == 1
                chunks += 1
                masked += not batch.advantage_BT[row, own].any()
                quiet += not batch.entropy_BT[row, own].any()
        assert not batch.advantage_BT[batch.chunk_BT < 0].any()
        assert (batch.entropy_BT[batch.chunk_BT < 0] == 1).all()
    assert (masked, quiet) == (chunks // 4, chunks // 10)
    assert figures["advantage_masked"] == pytest.approx((chunks // 4) / chunks)


def test_each_chunk_counts_once_in_mean_and_std():
    batches = rewarded_batches(groups=8)
    critics = _saying(_critics(), drawn_values(batches))
    tag_G = np.zeros(8, np.int32)
    plain, _ = credited_by(critics, batches, TURNS)
    hp = gae("turn_gae", "batch", "batch").advantage
    scaled, _ = credited_by(critics, batches, TURNS, lambda b: scale_advantages(b, tag_G, hp))
    plain_U = at_starts([b.advantage_BT for b in plain], batches)
    mean, std = plain_U.mean(), plain_U.std()
    for before, after in zip(plain, scaled, strict=True):
        written_BT = before.chunk_BT >= 0
        expected_BT = np.where(written_BT, (before.advantage_BT - mean) / std, 0.0)
        np.testing.assert_allclose(after.advantage_BT, expected_BT, atol=1e-4)


# Rows of two trajectories or more, and rows of which many have one.
@pytest.mark.heavy
@each_row("pack_length", [64, 32])
def test_a_blend_takes_its_lambda_from_what_critics_know_at_the_end(pack_length):
    shape = dataclasses.replace(SHAPE, pack_length=pack_length)
    batches = pack_all(rewarded_samples(groups=8), shape)
    return_BT = returns(batches, GAMMA, by_chunk=True)
    last = [_last_chunks(batch) for batch in batches]
    # Too high by the same everywhere, so that the last error is not 0, and lambda counts.
    at_end = [np.where(known, r + 0.25, 0.5) for r, known in zip(return_BT, last, strict=True)]
    knowing = [np.stack([value_BT] * 2).astype(np.float32) for value_BT in at_end]
    guessing = [np.zeros_like(value_QBT) for value_QBT in knowing]
    half, sure = dataclasses.replace(MINI, lam=0.5), dataclasses.replace(MINI, lam=1.0)
    for values, like, explained in ((knowing, half, 1.0), (guessing, sure, 0.0)):
        blends = gae("blended_turn_gae")
        found, figures = credited_by(_saying(_critics(half), values), batches, blends)
        expected, _ = credited_by(_saying(_critics(like), values), batches, TURNS)
        assert figures["critic_explained_at_end"] == explained
        for batch, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(batch.advantage_BT, other.advantage_BT)
            assert batch.advantage_BT.any()
    # Otherwise the test would not see which lambda it was.
    one, other = (
        credited_by(_saying(_critics(hp), knowing), batches, TURNS)[0] for hp in (half, sure)
    )
    assert not np.allclose(one[0].advantage_BT, other[0].advantage_BT)


def _last_chunks(batch):
    """The tokens of each trajectory's last chunk, [B, T]."""
    last_BT = np.zeros(batch.chunk_BT.shape, bool)
    for row, segment_T in enumerate(batch.segment_BT):
        for segment in np.unique(segment_T[segment_T > 0]):
            own_T = segment_T == segment
            last_BT[row] |= own_T & (batch.chunk_BT[row] == batch.chunk_BT[row, own_T].max())
    return last_BT
