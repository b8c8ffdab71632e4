"""Attention block by block is attention, on one device and on several."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.architecture import Attention
from ale_jax.config.hardware import MeshShape
from ale_jax.model import blockwise_attention as module
from ale_jax.model.attention import context_attention, zigzag
from ale_jax.model.blockwise_attention import Places, blockwise_attention, in_reach
from ale_jax.model.compute import EXACT
from ale_jax.model.sharding import make_mesh

B, T, N, G, H = 2, 64, 4, 2, 8
KEYS = jax.random.split(jax.random.key(0), 3)
Q, K, V = (
    jax.random.normal(key, (B, T, heads, H)) for key, heads in zip(KEYS, (N, G, G), strict=True)
)
SINK = jnp.array([-1.0, 0.5, 1.0, 3.0])
KIND = Attention(N, G, H, scale=H**-0.5, rope=None)
LENGTHS = ((20, 3, 30), (64,))  # of the segments in each row; what is left is padding


def _places() -> Places:
    segment, position = np.zeros((B, T), np.int32), np.zeros((B, T), np.int32)
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for number, length in enumerate(lengths, 1):
            segment[row, start : start + length] = number
            position[row, start : start + length] = np.arange(length)
            start += length
        position[row, start:] = np.arange(T - start)
    return Places(jnp.asarray(segment), jnp.asarray(position))


def _plain(q, k, v, sink, places, window=512, cap=None):
    same = places.segment_BT[:, :, None] == places.segment_BT[:, None, :]
    mask = jnp.tril(same) & ~jnp.tril(same, -window)
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    score = jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
    score = cap * jnp.tanh(score / cap) if cap else score
    score = jnp.where(mask[:, None], score, -jnp.inf)
    if sink is None:
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(score, axis=-1), v)
    sinks = jnp.broadcast_to(sink[None, :, None, None], (*score.shape[:3], 1))
    weight = jax.nn.softmax(jnp.concatenate([score, sinks], axis=-1), axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", weight[..., :-1], v)


def _graded(attention, places, inputs=(Q, K, V, None)):
    def total(q, k, v, sink):
        out = attention(q, k, v, sink, places)
        return jnp.sin(3 * out.astype(jnp.float32)).sum(), out

    graded = jax.value_and_grad(total, argnums=(0, 1, 2, 3), has_aux=True)
    return jax.jit(graded, compiler_options=EXACT)(*inputs)


@pytest.mark.parametrize(
    ("block", "window", "cap", "sink"),
    [
        (64, T, 0, None),
        (16, T, 0, None),
        (5, T, 0, None),
        (16, 7, 0, None),
        (16, T, 1.5, None),
        (16, 7, 0, SINK),
    ],
    ids=["whole", "blocks", "small blocks", "window", "cap", "window, sinks"],
)
def test_it_is_plain_attention_with_its_gradient(monkeypatch, block, window, cap, sink):
    monkeypatch.setitem(module.BLOCK, "cpu", block)
    places, kind = _places(), dataclasses.replace(KIND, window=window % T, cap=cap)
    expected = _graded(partial(_plain, window=window, cap=cap), places, (Q, K, V, sink))

    def attention(q, k, v, sink, places):
        return blockwise_attention(q, k, v, places, places, kind, sink)

    found = _graded(attention, places, (Q, K, V, sink))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), expected, found
    )


def test_of_bfloat16_the_scores_are_float32():
    """Rounded to bfloat16, they would give 0.8% of the output and 5% of the gradients as errors."""
    like = ((2, 2.0), (1, 4.0), (1, 1.0))  # heads and standard deviation of q, k, v
    exact = [
        scale * jax.random.normal(key, (1, 512, heads, 128))
        for key, (heads, scale) in zip(KEYS, like, strict=True)
    ]
    rounded = [x.astype(jnp.bfloat16) for x in exact]
    position = jnp.arange(512)[None]
    places = Places(jnp.ones_like(position), position)
    (_, out), gradient = _graded(_plain, places, [*(x.astype(jnp.float32) for x in rounded), None])
    wide = dataclasses.replace(KIND, scale=128**-0.5)

    def attention(q, k, v, sink, places):
        return blockwise_attention(q, k, v, places, places, wide)

    found = _graded(attention, places, [*rounded, None])
    expected = dict(zip(("out", "dq", "dk", "dv"), (out, *gradient[:3]), strict=True))
    share = {
        name: float(jnp.abs(a.astype(jnp.float32) - b).mean() / jnp.abs(b).mean())
        for (name, b), a in zip(expected.items(), (found[0][1], *found[1][:3]), strict=True)
    }
    most = {"out": 0.003, "dq": 0.02, "dk": 0.02, "dv": 0.006}
    assert all(share[name] < bound for name, bound in most.items()), share


@pytest.mark.parametrize("window", [0, 7])
def test_a_block_visits_only_what_one_of_its_queries_sees(monkeypatch, window):
    monkeypatch.setitem(module.BLOCK, "cpu", 16)
    segment, _ = _places()
    in_row = Places(segment, jnp.broadcast_to(jnp.arange(T), (B, T)))
    kind = dataclasses.replace(KIND, window=window)
    attend = jax.jit(lambda q, v, queries: blockwise_attention(q, K, v, queries, in_row, kind))
    same = segment[:, :, None] == segment[:, None, :]
    seen_BZYm = (same & in_reach(*[in_row.position_BT] * 2, window)).reshape(B, 4, 16, 4, 16)
    sees_BZY = seen_BZYm.any(axis=(2, 4))
    assert 8 < sees_BZY.sum() < 20  # of 32
    for z in range(4):
        q, *queries = (x[:, 16 * z :][:, :16] for x in (Q, *in_row))
        # Where it is looked at, such a value would reach the output: 0 * nan is nan.
        poisoned = jnp.where(jnp.repeat(sees_BZY[:, z], 16, axis=1)[..., None, None], V, jnp.nan)
        assert jnp.isfinite(attend(q, poisoned, Places(*queries))).all()
        assert not jnp.isfinite(attend(q, V.at[:, 16 * z].set(jnp.nan), Places(*queries))).all()


@pytest.mark.parametrize(
    "mesh_shape", [MeshShape(data=2, context=4), MeshShape(data=2, context=2, tensor=2)], ids=str
)
def test_over_devices_it_is_the_same(mesh_shape):
    places, mesh = _places(), make_mesh(mesh_shape)
    order = zigzag(T, mesh_shape.context)
    back = np.argsort(order)

    def attention(q, k, v, sink, places):
        q, k, v, permuted = jax.tree.map(lambda x: x[:, order], (q, k, v, places))
        return context_attention(q, k, v, permuted, KIND, sink)[:, back]

    inputs = Q, K, V, SINK
    expected = _graded(_plain, places, inputs)
    with jax.set_mesh(mesh):
        found = _graded(attention, places, inputs)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), expected, found
    )


def test_every_device_sees_as_many_keys():
    order = zigzag(64, 4).reshape(4, 16)
    assert sorted(order.ravel()) == list(range(64))
    assert len({int((device + 1).sum()) for device in order}) == 1


def test_rows_that_cannot_be_dealt_out_are_refused():
    with pytest.raises(ValueError, match=r"rows of 60 tokens .* multiple of 8"):
        zigzag(60, 4)
