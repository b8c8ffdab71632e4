"""The engine's sizes: what is refused, and what a shard of a mesh holds."""

import dataclasses
import re

import pytest

from ale_jax.config.engine import EngineShape
from tests.rows import each_row

SHAPE = EngineShape(
    max_sequences=4,
    max_sequence_length=100,
    prefill_tokens=(8, 32),
    prefill_rows=2,
    prefill_budget=64,
    page_tokens=16,
    pages=28,
)


@each_row(
    "fields, answer",
    [
        ({"weights": "int4"}, "weights 'int4' is unknown: choose one of same, int8, fp8"),
        ({"prefill_tokens": ()}, "engine.prefill_tokens () must be numbers in ascending order"),
        ({"prefill_tokens": (32, 8)}, "must be numbers in ascending order"),
        ({"prefill_tokens": (0, 8)}, "engine.prefill_tokens (0, 8) must be at least 1"),
        ({"max_sequences": 0}, "max_sequences 0 must be at least 1"),
        ({"max_sequence_length": 0}, "max_sequence_length 0 must be at least 1"),
        ({"decode_steps": 0}, "decode_steps 0 must be at least 1"),
        ({"prefill_rows": 0}, "prefill_rows 0 must be at least 1"),
        ({"page_tokens": 0}, "page_tokens 0 must be at least 1"),
        ({"prefill_budget": 63}, "engine.prefill_budget 63 must be at least engine.prefill_rows 2"),
        (
            {"speculative_tokens": 2, "dispatch_ahead": True},
            "engine.speculative_tokens 2 needs the tokens of the last dispatch",
        ),
        ({"pages": 6}, "set it to 7 or more, and to 28 so that all"),
    ],
)
def test_sizes_that_cannot_work_are_refused(fields, answer):
    with pytest.raises(ValueError, match=re.escape(answer)):
        dataclasses.replace(SHAPE, **fields)


def test_the_smallest_sizes_that_work_are_taken():
    one = dict.fromkeys(("max_sequences", "max_sequence_length", "decode_steps", "page_tokens"), 1)
    EngineShape(**one, prefill_tokens=(1,), prefill_rows=1, prefill_budget=1, pages=1)


def test_derived_sizes():
    assert SHAPE.pages_per_sequence == 7  # 6.25 pages of 16 tokens
    assert SHAPE.max_batches == 4  # 64 tokens in batches of two rows of at least 8
    assert SHAPE.swapped_pages == 7 and dataclasses.replace(SHAPE, pages=40).swapped_pages == 10
    assert SHAPE.dispatch_tokens == SHAPE.decode_steps
    assert (
        dataclasses.replace(SHAPE, speculative_tokens=3).dispatch_tokens == 4 * SHAPE.decode_steps
    )
    assert not SHAPE.eight_bits
    assert dataclasses.replace(SHAPE, int8_cache=True).eight_bits
    assert dataclasses.replace(SHAPE, weights="int8").eight_bits


def test_a_shard_holds_its_part_or_says_what_would_divide():
    half = SHAPE.shard(2)
    assert (half.max_sequences, half.pages) == (2, 14)
    with pytest.raises(ValueError, match=r"max_sequences 4 must be a multiple .*, 3: set it to 6"):
        SHAPE.shard(3)
    with pytest.raises(ValueError, match=r"pages 8 leave 4 to each .* 2 shards.* set it to 14"):
        dataclasses.replace(SHAPE, pages=8).shard(2)
