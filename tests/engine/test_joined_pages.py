"""Keys and values that lie side by side, as where a TPU's lanes are twice as wide as heads, change
no token."""

import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.engine.engine import Engine
from ale_jax.model import cache
from ale_jax.model.cache import JoinedPages, LayerPages
from ale_jax.model.memory import empty_cache
from ale_jax.model.paged_attention import has_kernel
from ale_jax.model.params import init_params
from tests.engine.playing import STOP, play, prompt
from tests.engine.shapes import engine_shape
from tests.model.shapes import MIXED, with_mixer

WINDOW = dataclasses.replace(MIXED.layers[0].mixer, window=24, sinks=True)
SHAPE = with_mixer(MIXED, WINDOW)
WIDTH = WINDOW.head_width


def _played(max_sequence_length, pages):
    """Six conversations at once, of which three begin alike and some give way."""
    sizes = engine_shape(max_sequence_length=max_sequence_length, pages=pages)
    params = init_params(jax.random.key(1), SHAPE)
    engine = Engine(SHAPE, sizes, STOP, params)
    with contextlib.closing(engine), ThreadPoolExecutor(6) as pool:
        begin = [prompt(1, 45) if n < 3 else None for n in range(6)]
        played = list(pool.map(lambda n: play(engine, n, 2, first=begin[n]), range(6)))
    return played, engine


@pytest.mark.heavy
@pytest.mark.parametrize("longest", [96, 768], ids=["copied to rows", "read in pages"])
def test_tokens_are_those_of_keys_and_values_apart(longest, monkeypatch):
    pages = 2 + -(-longest // 8)
    apart, engine = _played(longest, 8 * pages)
    assert {type(kept) for kept in engine._cache} == {LayerPages}
    monkeypatch.setitem(cache.LANES, "cpu", 2 * WIDTH)
    joined, engine = _played(longest, pages)
    assert {type(kept) for kept in engine._cache} == {JoinedPages}
    assert engine.stats.shared_tokens or engine.stats.preemptions
    for turns, expected in zip(joined, apart, strict=True):
        for (_, reply), (_, wanted) in zip(turns, expected, strict=True):
            np.testing.assert_array_equal(reply.ids, wanted.ids)
            np.testing.assert_allclose(reply.logp_plain, wanted.logp_plain, atol=5e-6)


def test_only_heads_of_half_the_lanes_are_joined():
    for width, dtype, kind in ((64, "float32", JoinedPages), (128, "float32", LayerPages)):
        shape = with_mixer(SHAPE, dataclasses.replace(WINDOW, head_width=width))
        kept = empty_cache(shape, 4, 8, np.dtype(dtype), platform="tpu")
        assert {type(each) for each in kept} == {kind}
        assert all(leaf.shape == (2, 4, 8, 128) for leaf in jax.tree.leaves(kept))
        assert {type(x) for x in empty_cache(shape, 4, 8, np.dtype("int8"), platform="tpu")} == {
            LayerPages
        }


def test_a_tpus_kernel_reads_no_heads_narrower_than_its_lanes():
    full = dataclasses.replace(WINDOW, window=0, sinks=False)
    for width, has in ((128, True), (256, True), (96, False)):
        kind = dataclasses.replace(full, head_width=width)
        (pages, _) = empty_cache(with_mixer(SHAPE, kind), 4, 8, platform="tpu")
        assert has_kernel("tpu", pages, kind) == has
        assert has_kernel("gpu", pages, kind)
