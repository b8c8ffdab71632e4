"""The sampling program by itself: what it prefills, and what it does not copy for that."""

import math
import re
from functools import partial

import jax
import numpy as np
import pytest

from ale_jax.model.generate import PrefillBatches, prefill_and_decode
from ale_jax.model.memory import empty_cache
from ale_jax.model.params import init_params
from ale_jax.model.sampler import SlotState
from tests.model.shapes import DENSE

SLOTS, PAGES, PAGE_TOKENS, SIZES = 2, 10, 8, (4, 16)
PAGE_SW = np.arange(PAGES, dtype=np.int32).reshape(SLOTS, -1)
# More than 512 tokens, up to which a CPU copies the pages of conversations for decode steps.
LONG_SW = np.pad(PAGE_SW, ((0, 0), (0, 60)))
PARAMS = init_params(jax.random.key(0), DENSE)
RESTING = SlotState(
    token_S=np.zeros(SLOTS, np.int32),
    position_S=np.zeros(SLOTS, np.int32),
    budget_S=np.zeros(SLOTS, np.int32),
    key_S2=np.zeros((SLOTS, 2), np.uint32),
    temperature_S=np.ones(SLOTS, np.float32),
    top_k_S=np.zeros(SLOTS, np.int32),
    top_p_S=np.ones(SLOTS, np.float32),
    min_p_S=np.zeros(SLOTS, np.float32),
    continues_S=np.zeros(SLOTS, np.bool_),
)
PROGRAM = partial(
    prefill_and_decode, shape=DENSE, sizes=SIZES, steps=2, stop_ids=(1,), platform="cpu"
)


def _chunks(*chunks):
    """Of (slot, start, tokens), a batch each, with room for six."""
    size_Q, slot_Q, start_Q, count_Q = np.zeros((4, 6), np.int32)
    tokens_QT = np.zeros((6, SIZES[-1]), np.int32)
    for q, (slot, start, tokens) in enumerate(chunks):
        size_Q[q] = np.searchsorted(SIZES, len(tokens))
        slot_Q[q], start_Q[q], count_Q[q] = slot, start, len(tokens)
        tokens_QT[q, : len(tokens)] = tokens
    of_rows = slot_Q[:, None], tokens_QT[:, None], start_Q[:, None], count_Q[:, None]
    return PrefillBatches(np.int32(len(chunks)), size_Q, *of_rows)


def _empty():
    return empty_cache(DENSE, PAGES, PAGE_TOKENS)


def test_batches_of_all_sizes_are_prefilled_in_their_order():
    """Later chunks of a conversation see its earlier ones, whatever sizes lie between."""
    tokens = np.random.default_rng(0).integers(4, 96, 40)
    chunks = [(0, 0, tokens[:3]), (0, 3, tokens[3:19]), (1, 0, tokens[:16]), (0, 19, tokens[19:23])]
    chunks += [(1, 16, tokens[16:20]), (0, 23, tokens[23:39])]
    together, *_ = PROGRAM(PARAMS, _empty(), RESTING, PAGE_SW, _chunks(*chunks), RESTING)
    one_by_one = _empty()
    for chunk in chunks:
        one_by_one, *_ = PROGRAM(PARAMS, one_by_one, RESTING, PAGE_SW, _chunks(chunk), RESTING)
    for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(one_by_one), strict=True):
        assert np.abs(expected).max() > 0
        np.testing.assert_array_equal(found, expected)


def _arrays(program, operation=r"\w[\w-]*"):
    """The numbers of elements of what an operation returns in a compiled program."""
    found = re.findall(rf"= f32\[([\d,]+)\]\S* {operation}\(", program)
    return [math.prod(map(int, dims.split(","))) for dims in found]


@pytest.mark.parametrize("page_SW", [PAGE_SW, LONG_SW], ids=["short", "long"])
def test_the_cache_is_copied_nowhere(page_SW):
    """It may be most of a device's memory."""
    cache = _empty()
    lowered = prefill_and_decode.lower(
        PARAMS, cache, RESTING, page_SW, _chunks(), RESTING, **PROGRAM.keywords
    )
    program, (G, P, b, H) = lowered.compile().as_text(), cache[0].k_GPbH.shape
    assert f"f32[{G},{P},{b},{H}]" in program
    assert G * P * b * H in _arrays(program)
    assert max(_arrays(program, "copy")) < G * P * b * H
    if page_SW is LONG_SW:  # nor are those pages gathered that conversations could come to have
        assert max(_arrays(program)) < G * page_SW.size * b * H


@pytest.mark.heavy
@pytest.mark.parametrize("page_SW", [PAGE_SW, LONG_SW], ids=["short", "long"])
def test_several_decode_steps_give_what_single_ones_would(page_SW):
    """Ten tokens, more than a page has, of one conversation, while the other ends after four."""
    steps, budget_S = 10, np.array([10, 4])
    tokens = np.random.default_rng(0).integers(4, 96, 27)
    before = [(0, 0, tokens[:16]), (1, 0, tokens[16:27])]
    start = RESTING.replace(
        token_S=np.array([5, 6], np.int32),
        position_S=np.array([16, 11], np.int32),
        key_S2=np.array([[1, 2], [3, 4]], np.uint32),
    )

    def decode(cache, budget_S, state, steps):
        state = state.replace(budget_S=budget_S.astype(np.int32))
        return PROGRAM(
            PARAMS, cache, RESTING, page_SW, _chunks(), state, steps=steps, stop_ids=(96,)
        )

    together, *_ = PROGRAM(PARAMS, _empty(), RESTING, PAGE_SW, _chunks(*before), RESTING)
    together, _, output = decode(together, budget_S, start, steps)
    one_by_one, *_ = PROGRAM(PARAMS, _empty(), RESTING, PAGE_SW, _chunks(*before), RESTING)
    state = start
    for step in range(steps):
        left_S = np.clip(budget_S - step, 0, 1)
        one_by_one, _, alone = decode(one_by_one, left_S, state, 1)
        token_S = np.asarray(output.token_nS[step])
        np.testing.assert_array_equal(token_S, alone.token_nS[0])
        np.testing.assert_array_equal(token_S >= 0, left_S > 0)
        logp = np.where(left_S, output.logp_mu_nS[step], 0)
        np.testing.assert_allclose(logp, np.where(left_S, alone.logp_mu_nS[0], 0), atol=1e-5)
        state = state.replace(
            token_S=np.where(left_S, token_S, state.token_S), position_S=state.position_S + left_S
        )
    for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
