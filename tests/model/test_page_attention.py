"""Attention to pages in plain XLA: softmax attention over as many blocks as somebody sees."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.architecture import Attention
from ale_jax.model import page_attention
from ale_jax.model.blockwise_attention import in_reach
from ale_jax.model.cache import Int8, LatentPages, LayerPages, gather_rows, store_as
from ale_jax.model.layers import masked_attention
from ale_jax.model.page_attention import (
    Queries,
    attend_pages,
    keys_and_values,
    reads_in_place,
)

B, G, N, H, b, W = 3, 2, 4, 16, 4, 12
KIND = Attention(N, G, H, scale=H**-0.5, rope=None)
SINK_N = jnp.array([-1.0, 0.5, 1.0, 3.0])
START_B = np.array([0, 27, 17])  # positions of the first query of each
DRAW = np.random.default_rng(0)
PAGE_BW = jnp.asarray(DRAW.permutation(B * W).reshape(B, W), jnp.int32)


@pytest.fixture(autouse=True)
def _blocks_of_four_pages(monkeypatch):
    monkeypatch.setitem(page_attention.BLOCK, "cpu", 4 * b)


def _pages(pages=LayerPages):
    def numbers(*heads):
        return jnp.asarray(DRAW.normal(size=(*heads, B * W, b, H)), jnp.float32)

    return pages(numbers()) if pages is LatentPages else pages(numbers(G), numbers(G))


def _in_eight_bits():
    pages = _pages()
    zeros = Int8(jnp.zeros((), jnp.int8), jnp.zeros(()))
    return LayerPages(*(store_as(x, zeros) for x in pages.arrays))


def _queries(T, rows=slice(None)):
    q_BTNH = jnp.asarray(np.random.default_rng(1).normal(size=(B, T, N, H)), jnp.float32)
    position_BT = jnp.asarray(START_B[:, None] + np.arange(T))
    return Queries(*(x[rows] for x in (q_BTNH, position_BT, jnp.ones((B, T), bool))))


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize(
    ("make", "change"),
    [
        (_pages, {}),
        (_pages, {"window": 6}),
        (_pages, {"cap": 1.5}),
        (_pages, {"sinks": True}),
        (_in_eight_bits, {}),
        (lambda: _pages(LatentPages), {"num_kv_heads": 1}),
    ],
    ids=["plain", "window", "cap", "sinks", "int8", "latents"],
)
def test_it_is_the_attention_to_rows_of_all_pages(make, change, T):
    kind, pages, queries = dataclasses.replace(KIND, **change), make(), _queries(T)
    sink_N = SINK_N if kind.sinks else None
    k, v = keys_and_values(gather_rows(pages, PAGE_BW), jnp.float32)
    mask_BTM = in_reach(queries.position_BT, jnp.arange(W * b)[None], kind.window)
    expected = masked_attention(queries.q_BTNH, k, v, mask_BTM, kind, sink_N)
    found = jax.jit(attend_pages, static_argnums=3)(queries, pages, PAGE_BW, kind, sink_N)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("window", [0, 6])
def test_a_conversation_gets_the_same_numbers_alone(window):
    """Though it sees other blocks than the one beside it."""
    kind, pages = dataclasses.replace(KIND, window=window), _pages()
    attend = jax.jit(attend_pages, static_argnums=3)
    beside = attend(_queries(1), pages, PAGE_BW, kind)
    real_BT = jnp.arange(B)[:, None] == 2
    alone = attend(_queries(1)._replace(is_real_BT=real_BT), pages, PAGE_BW, kind)
    np.testing.assert_array_equal(alone[2], beside[2])
    assert jnp.isfinite(alone).all()


def test_what_nobody_sees_is_not_read():
    """Where it is read, such a value would reach the output: 0 * nan is nan."""
    kind, pages, queries = dataclasses.replace(KIND, window=6), _pages(), _queries(1, slice(1, 2))
    page_1W, unseen = PAGE_BW[1:2], np.r_[PAGE_BW[1, :4], PAGE_BW[1, 8:]]
    poisoned = jax.tree.map(lambda x: x.at[:, unseen].set(jnp.nan), pages)
    assert jnp.isfinite(attend_pages(queries, poisoned, page_1W, kind)).all()
    seen = jax.tree.map(lambda x: x.at[:, PAGE_BW[1, 5]].set(jnp.nan), pages)
    assert not jnp.isfinite(attend_pages(queries, seen, page_1W, kind)).all()


@pytest.mark.parametrize(
    ("platform", "conversations", "tokens", "in_place"),
    [
        ("cpu", 4, 448, False),
        ("cpu", 1, 513, True),  # a long one
        ("cpu", 16, 448, True),  # many, whose copy would be read in every step
        ("gpu", 64, 4096, False),
    ],
)
def test_a_cpu_copies_the_pages_of_few_short_conversations(
    platform, conversations, tokens, in_place
):
    assert reads_in_place(platform, conversations, tokens) == in_place
