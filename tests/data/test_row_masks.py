"""The sampling masks of packed rows: a table for each, and of each token the number of its own."""

import dataclasses

import numpy as np
import pytest

from ale_jax.algo.advantages import Credit
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.engine import PLAIN, Sampling
from ale_jax.config.learn import Shape
from ale_jax.data.packing import Sample, pack, pack_all
from ale_jax.data.replay import Group
from ale_jax.learn.credit import credited_samples, tabulate_rewards
from ale_jax.records import FORCED, FREE, MAX_MASKS, SideBranch
from tests.data.make_trajectories import make_trajectory, make_turn

MASKS = np.arange(1, 13, dtype=np.int32).reshape(6, 2)  # six masks of 64 tokens


def held(mask_Iw, *turns, given=0, sampling=PLAIN):
    """turns: (prompt ids, action ids, numbers of masks; None: free)."""
    made = []
    for prompt, action, numbers in turns:
        mask_id = None if numbers is None else np.array(numbers, np.int16)
        made.append(dataclasses.replace(make_turn(prompt, action), mask_id=mask_id))
    advantage_C = np.ones(len(made) - given, np.float32)
    return Sample(tuple(made), advantage_C, given, mask_Iw=mask_Iw, sampling=sampling)


def test_one_row_by_hand():
    """The second trajectory knows a mask of the first one by another number."""
    long = held(MASKS[:3], ([1, 2], [3, 4, 5], [2, FORCED, 0]), ([6], [7], None))
    short = held(MASKS[[4, 2]], ([8], [9, 9, 9], [1, 0, 1]))
    batch, _ = pack([short, long], Shape(1, 12, 4))
    expected = [FREE, FREE, 1, FORCED, 0, FREE, FREE, FREE, 1, 2, 1, FREE]
    np.testing.assert_array_equal(batch.mask_id_BT, [expected])
    np.testing.assert_array_equal(batch.mask_BIw[0, :3], MASKS[[0, 2, 4]])
    assert batch.mask_BIw.shape == (1, MAX_MASKS, 2) and not batch.mask_BIw[0, 3:].any()
    assert (batch.mask_id_BT.dtype, batch.mask_BIw.dtype) == (np.int16, np.int32)


def test_prefix_turns_are_not_masked_and_take_no_room():
    given = held(MASKS, ([1], [2], [5]), ([3], [4, 5], [3, FREE]), given=1)
    batch, _ = pack([given], Shape(1, 6, 2))
    np.testing.assert_array_equal(batch.mask_id_BT, [[FREE, FREE, FREE, 0, FREE, FREE]])
    np.testing.assert_array_equal(batch.mask_BIw[0, :2], [MASKS[3], [0, 0]])


def test_a_batch_without_schemas_has_no_masks():
    batch, _ = pack([held(None, ([1], [2], None))], Shape(1, 4, 2))
    assert batch.mask_id_BT is None and batch.mask_BIw is None
    forced = held(MASKS[:0], ([1], [2], [FORCED]))
    batch, _ = pack([forced, held(None, ([1], [2], None))], Shape(2, 4, 2))
    np.testing.assert_array_equal(batch.mask_id_BT[0], [FREE, FORCED, FREE, FORCED + 1])


def test_a_full_table_of_masks_closes_a_row(monkeypatch):
    monkeypatch.setattr("ale_jax.data.packing.MAX_MASKS", 3)
    both, same, other = (
        held(MASKS, ([1] * length, [2, 3], numbers))
        for length, numbers in ((4, [0, 1]), (3, [1, 0]), (2, [2, 3]))
    )
    batch, leftover = pack([both, same, other], Shape(1, 100, 9))
    assert leftover == [other] and batch.segment_BT.max() == 2
    first, second = pack_all([both, same, other], Shape(1, 100, 9))
    np.testing.assert_array_equal(first.mask_BIw[0], [*MASKS[:2], [0, 0]])
    np.testing.assert_array_equal(second.mask_BIw[0], [*MASKS[2:4], [0, 0]])


def test_cut_tokens_have_room_for_a_mask_each(monkeypatch):
    monkeypatch.setattr("ale_jax.data.packing.MAX_MASKS", 1)
    cut = held(MASKS, ([1], [2, 3, 4], [0, 1, 2]), sampling=Sampling(top_p=0.8))
    batch, leftover = pack([cut, cut], Shape(1, 9, 2))
    assert not leftover and batch.mask_BIw.shape == (1, 9, 2)
    np.testing.assert_array_equal(batch.mask_id_BT, [[FREE, 0, 1, 2, FREE, 0, 1, 2, FREE]])
    np.testing.assert_array_equal(batch.mask_BIw[0], [*MASKS[:3], *[[0, 0]] * 6])


def test_sampled_tokens_alone_have_the_temperature():
    turns = ([1, 2], [3], None), ([4], [5, 6], None)
    cool = held(None, *turns, given=1, sampling=Sampling(temperature=0.5))
    batch, _ = pack([cool, held(None, ([7], [8], None))], Shape(1, 9, 2))
    np.testing.assert_array_equal(batch.temperature_BT, [[1, 1, 1, 1, 0.5, 0.5, 1, 1, 1]])
    assert batch.temperature_BT.dtype == np.float32
    plain, _ = pack([held(None, *turns)], Shape(1, 9, 2))
    assert plain.temperature_BT is None, "nothing is divided"


def test_more_masks_than_a_row_has_room_for_never_wait_for_one(monkeypatch):
    """They are refused when they are sampled; packed, they would wait for ever."""
    monkeypatch.setattr("ale_jax.data.packing.MAX_MASKS", 1)
    with pytest.raises(AssertionError, match="more masks"):
        pack_all([held(MASKS, ([1], [2, 3], [0, 1]))], Shape(1, 100, 9))


def test_side_branches_have_the_masks_of_their_episode():
    turns = held(MASKS, ([1], [2], [4]), ([1], [3], [5])).turns
    made = make_trajectory(0, 0, turns[:1])
    made = dataclasses.replace(made, side_branches=(SideBranch(turns[1:]),), mask_Iw=MASKS)
    table = tabulate_rewards([Group(0, (made,))], max_chunks=4)
    ones = np.ones((1, 4), np.float32)
    batch, _ = pack(credited_samples(table, Credit(ones, ones), AlgoConfig()), Shape(1, 4, 2))
    np.testing.assert_array_equal(batch.mask_id_BT, [[FREE, 0, FREE, 1]])
    np.testing.assert_array_equal(batch.mask_BIw[0, :2], MASKS[4:])
