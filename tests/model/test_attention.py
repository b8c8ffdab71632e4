"""Attention over packed rows: every kernel computes plain softmax attention within segments."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.architecture import Attention
from ale_jax.model import attention, paged_attention
from ale_jax.model.attention import packed_attention, xla_attention
from ale_jax.model.blockwise_attention import Places

pytestmark = pytest.mark.heavy

B, N, G, H = 2, 4, 2, 64
# Two conversations and padding; and three, the last up to the row's end.
SEGMENTS = ((1, 2, 2, 0), (1, 1, 2, 3))

KIND = Attention(N, G, H, scale=H**-0.5, rope=None)
SINK_N = jnp.array([-1.0, 0.5, 1.0, 3.0])


def _inputs(tokens):
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (
        jax.random.normal(key, (B, tokens, heads, H))
        for key, heads in zip(keys, (N, G, G), strict=True)
    )
    return q, k, v, jnp.asarray(np.repeat(SEGMENTS, -(-tokens // 4), axis=1)[:, :tokens])


def _plain(q_BTNH, k_BTGH, v_BTGH, segment_BT, kind, sink_N=None):
    k_BTNH, v_BTNH = (jnp.repeat(x, N // G, axis=2) for x in (k_BTGH, v_BTGH))
    score_BNTS = jnp.einsum("btnh,bsnh->bnts", q_BTNH, k_BTNH) / H**0.5
    if kind.cap:
        score_BNTS = kind.cap * jnp.tanh(score_BNTS / kind.cap)
    same_BTS = segment_BT[:, :, None] == segment_BT[:, None, :]
    every_TS = jnp.ones(same_BTS.shape[1:], bool)
    past_TS = jnp.tril(every_TS) & ~jnp.tril(
        every_TS, -kind.window if kind.window else -len(every_TS)
    )
    seen_BTS = same_BTS & past_TS[None]
    score_BNTS = jnp.where(seen_BTS[:, None], score_BNTS, -jnp.inf)
    if sink_N is not None:
        sinks_BNT1 = jnp.broadcast_to(sink_N[None, :, None, None], (*score_BNTS.shape[:3], 1))
        score_BNTS = jnp.concatenate([score_BNTS, sinks_BNT1], axis=-1)
    weight_BNTS = jax.nn.softmax(score_BNTS, axis=-1)[..., : seen_BTS.shape[-1]]
    return jnp.einsum("bnts,bsnh->btnh", weight_BNTS, v_BTNH)


def _outcome(attend, inputs, kind):
    """Output, and gradients of a function of it."""
    *qkv, segment_BT = inputs

    def total(qkv, sink_N):
        out = attend(*qkv, segment_BT, kind, sink_N)
        return jnp.sin(out).sum(), out

    sink_N = SINK_N if kind.sinks else None
    (grads, of_sink), out = jax.jit(jax.grad(total, (0, 1), has_aux=True))(qkv, sink_N)
    return out, *grads, *([of_sink] if kind.sinks else [])


# cuDNN itself cannot run here; how segments are told to a kernel that knows none can.
_without_segments = functools.partial(
    jax.nn.dot_product_attention, is_causal=True, implementation="xla"
)


def _with_codes(q_BTNH, k_BTGH, v_BTGH, segment_BT, kind, sink_N=None):
    reach = (kind.window - 1, 0) if kind.window else None
    attend = functools.partial(_without_segments, scale=kind.scale, local_window_size=reach)
    return paged_attention.attend_with_codes(attend, q_BTNH, k_BTGH, v_BTGH, segment_BT)


_splash = functools.partial(paged_attention.splash_attention, interpret=True)
_CHANGES = {"plain": {}, "window": {"window": 40}, "cap": {"cap": 1.5}, "sinks": {"sinks": True}}
_KERNELS = {
    "one block": (xla_attention, 64, _CHANGES),
    "blocks": (xla_attention, 300, _CHANGES),  # the last one not full
    "splash": (_splash, 256, _CHANGES),
    "codes": (_with_codes, 256, ["plain", "window"]),  # cuDNN has neither caps nor sinks
}


@pytest.mark.parametrize(
    ("attend", "tokens", "changes"),
    [
        pytest.param(attend, tokens, _CHANGES[name], id=f"{kernel}-{name}")
        for kernel, (attend, tokens, names) in _KERNELS.items()
        for name in names
    ],
)
def test_every_kernel_is_softmax_attention_within_segments(attend, tokens, changes):
    inputs, kind = _inputs(tokens), dataclasses.replace(KIND, **changes)
    outcomes = _outcome(_plain, inputs, kind), _outcome(attend, inputs, kind)
    for expected, found in zip(*outcomes, strict=True):
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("width", [24, 80], ids=["narrower", "wider"])
@pytest.mark.parametrize("kernel", [xla_attention, _with_codes], ids=["plain", "fused"])
def test_values_may_have_another_width_than_keys(kernel, width, monkeypatch):
    """Kernels that need equal widths are given them."""
    monkeypatch.setattr(attention, "_kernel", lambda *_: kernel)
    q, k, v, segment_BT = _inputs(256)
    v = jnp.concatenate([v, v], axis=-1)[..., :width]

    def packed(q, k, v, segment_BT, kind, sink_N):
        return packed_attention(q, k, v, Places(segment_BT, segment_BT), kind)

    inputs = q, k, v, segment_BT
    outcomes = _outcome(_plain, inputs, KIND), _outcome(packed, inputs, KIND)
    for expected, found in zip(*outcomes, strict=True):
        assert found.shape == expected.shape and np.abs(expected).max() > 1
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_codes_hide_other_segments_however_high_their_scores(dtype):
    """The keys of the first segment have scores of about 5,000 with all queries, the second's own
    have about -5,000: models with biases of queries and keys come near that."""
    q, k, v, _ = _inputs(256)
    segment_BT = jnp.repeat(jnp.asarray([[1, 2], [500, 12_869]]), 128, axis=1)
    sign_BT11 = jnp.where(jnp.arange(256) < 128, 1.0, -1.0)[None, :, None, None]
    q, k, v = (x.astype(dtype) for x in (q + 25, k + 25 * sign_BT11, v))
    expected = _plain(*(x.astype(jnp.float32) for x in (q, k, v)), segment_BT, KIND)
    np.testing.assert_allclose(_with_codes(q, k, v, segment_BT, KIND), expected, atol=0.05)


def test_codes_that_would_run_out_are_nan_and_not_another_segments():
    q, k, v, segment_BT = _inputs(4)
    out = _with_codes(q, k, v, jnp.where(segment_BT == 2, 12_870, segment_BT), KIND)
    unknown_BT = [[False, True, True, True], [False, False, True, True]]
    assert np.isnan(out).any(axis=(2, 3)).tolist() == unknown_BT


def test_a_long_row_never_needs_all_scores():
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _inputs(4096))

    def total(q, k, v, segment):
        return packed_attention(q, k, v, Places(segment, segment), KIND).sum()

    compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(*inputs).compile()
    scores = B * N * 4096 * 4096 * 4  # bytes
    assert compiled.memory_analysis().temp_size_in_bytes < scores / 4


@pytest.mark.parametrize(
    ("tokens", "window", "sinks"),
    [(512, 0, False), (512, 128, True), (500, 0, False)],
    ids=["splash", "window and sinks", "no multiple"],
)
def test_a_mesh_of_tpus_gets_their_kernel_where_it_fits(tokens, window, sinks):
    device = jax.sharding.AbstractDevice(device_kind="TPU v5p", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh(
        (2, 1, 1, 2, 1),
        ("data", "fsdp", "expert", "tensor", "context"),
        axis_types=(jax.sharding.AxisType.Auto,) * 5,
        abstract_device=device,
    )
    with jax.sharding.use_abstract_mesh(mesh):
        q, k, v, segment = _inputs(tokens)
        kind = dataclasses.replace(KIND, window=window, sinks=sinks)
        attend = functools.partial(packed_attention, kind=kind)
        places, sink_N = Places(segment, segment), SINK_N if sinks else None
        traced = jax.jit(attend).trace(q, k, v, places, sink_N=sink_N)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert ("tpu_custom_call" in text) == (tokens == 512)
