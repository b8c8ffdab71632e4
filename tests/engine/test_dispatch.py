"""What a dispatch is given: chunks in their order, no more than the budget."""

import numpy as np
import pytest

from ale_jax.engine.dispatch import PrefillBatcher
from ale_jax.engine.sequence import PrefillChunk
from tests.engine.shapes import engine_shape


def test_chunks_of_one_size_share_a_batch_until_it_is_full():
    batches = PrefillBatcher(engine_shape(prefill_rows=2, prefill_budget=80), shards=1)
    for slot, size in enumerate((16, 16, 16, 8)):
        assert batches.has_room(0, slot, size)
        batches.add(0, slot, PrefillChunk(start=10 * slot, ids=[slot] * 3, size=size))
    assert batches.has_room(0, 0, 8) and not batches.has_room(0, 0, 16)
    chunks = batches.arrays()
    assert chunks.num_batches == 3
    np.testing.assert_array_equal(chunks.size_Q[:3], [1, 1, 0])
    np.testing.assert_array_equal(chunks.slot_QR[:3], [[0, 1], [2, 0], [3, 0]])
    np.testing.assert_array_equal(chunks.count_QR[:3], [[3, 3], [3, 0], [3, 0]])
    np.testing.assert_array_equal(chunks.start_QR[1], [20, 0])
    np.testing.assert_array_equal(chunks.tokens_QRT[1, 0, :4], [2, 2, 2, 0])


def test_the_budget_counts_empty_rows_too():
    batches = PrefillBatcher(engine_shape(prefill_rows=2, prefill_budget=48), shards=1)
    batches.add(0, 0, PrefillChunk(0, [1], 16))
    assert batches.has_room(0, 0, 8) and batches.has_room(0, 0, 16)  # a batch of 8; a row of 16
    batches.add(0, 1, PrefillChunk(0, [1], 16))
    assert batches.has_room(0, 0, 8) and not batches.has_room(0, 0, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill_tokens": (16, 8)}, "ascending"),
        ({"decode_steps": 0}, "at least 1"),
        ({"prefill_budget": 15}, "at least engine.prefill_rows 1 x the longest chunk, 16"),
        ({"pages": 11}, "set it to 12 or more, and to 48"),
    ],
)
def test_sizes_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        engine_shape(**changes)
