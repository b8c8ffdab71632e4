"""Credit from critics whose time steps are tokens: GAE on their mean value, and the masks."""

import dataclasses
import math

import numpy as np
import pytest

from tests.learn.rewarded import rewarded_batches
from tests.learn.test_critics import GAMMA, MINI, _critics, _saying, _written, credited_by


def _seven_more(batches):
    return [dataclasses.replace(b, advantage_BT=b.advantage_BT + 7) for b in batches]


def test_new_critics_leave_the_discounted_return_and_mask_nothing():
    batches = rewarded_batches()
    hp = dataclasses.replace(MINI, mask_share=0.2, entropy_share=0.2)
    credited, figures = credited_by(_critics(hp), batches)
    for before, after in zip(batches, credited, strict=True):
        for b, s in np.argwhere(before.reward_BT > 0):
            segment = before.segment_BT[b] == before.segment_BT[b, s]
            written = np.flatnonzero(segment & (before.chunk_BT[b] >= 0))
            expected = GAMMA ** np.arange(len(written))[::-1]
            np.testing.assert_allclose(after.advantage_BT[b, written], expected, rtol=1e-5)
        assert (after.entropy_BT == 1).all()
        assert not after.advantage_BT[before.chunk_BT < 0].any()
    assert figures["advantage_masked"] == 0 and figures["critic_spread"] == 0
    assert figures["critic_explained_variance"] == 0


def test_masks_are_of_the_whole_step():
    batches = rewarded_batches(groups=8)
    count = sum((b.chunk_BT >= 0).sum() for b in batches)
    # The spread is the token's number: the first batch's are the lowest.
    numbers, start = [], 0
    for batch in batches:
        number_BT = np.zeros(batch.chunk_BT.shape, np.float32)
        written = batch.chunk_BT >= 0
        number_BT[written] = np.arange(start, start + written.sum())
        numbers.append(number_BT)
        start += written.sum()
    values = [np.stack([-number_BT, number_BT]) for number_BT in numbers]  # mean 0
    hp = dataclasses.replace(MINI, mask_share=0.25, entropy_share=0.1)
    critics = _saying(_critics(hp), values)
    credited, figures = credited_by(critics, batches)
    plain, _ = credited_by(_saying(_critics(), values), batches)
    number_t = _written(numbers, batches)
    teaches_t = number_t >= math.floor(0.25 * count)
    explores_t = number_t < count - math.floor(0.1 * count)
    plain_t = _written([b.advantage_BT for b in plain], batches)
    found_t = _written([b.advantage_BT for b in credited], batches)
    np.testing.assert_array_equal(found_t, np.where(teaches_t, plain_t, 0.0))
    entropy_t = _written([b.entropy_BT for b in credited], batches)
    np.testing.assert_array_equal(entropy_t, explores_t)
    assert figures["advantage_masked"] == pytest.approx(math.floor(0.25 * count) / count)
    assert figures["entropy_masked"] == pytest.approx(math.floor(0.1 * count) / count)
    # What is normalised is masked afterwards, and a weight that was there stays.
    halves = np.full(batches[0].chunk_BT.shape, 0.5, np.float32)
    weighed = [dataclasses.replace(b, entropy_BT=halves) for b in batches]
    moved, _ = credited_by(critics, weighed, scale=_seven_more)
    moved_t = _written([b.advantage_BT for b in moved], batches)
    np.testing.assert_allclose(moved_t, np.where(teaches_t, plain_t + 7.0, 0.0))
    np.testing.assert_array_equal(_written([b.entropy_BT for b in moved], batches), explores_t / 2)


def test_gae_is_given_the_mean_value():
    batches = rewarded_batches()
    draw = np.random.default_rng(0)
    values = [draw.normal(size=(2, *b.chunk_BT.shape)).astype(np.float32) for b in batches]
    found, _ = credited_by(_saying(_critics(), values), batches)
    one = dataclasses.replace(MINI, count=1)
    alone = [value_QBT.mean(axis=0, keepdims=True) for value_QBT in values]
    expected, _ = credited_by(_saying(_critics(one), alone), batches)
    for both, single in zip(found, expected, strict=True):
        assert np.abs(single.advantage_BT).max() > 0.1 and single.entropy_BT is None
        np.testing.assert_allclose(both.advantage_BT, single.advantage_BT, atol=1e-5)
