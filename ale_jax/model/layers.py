"""The layers of a decoder as functions of arrays. Sampler and learner share all of them.

The layers of a deep model are applied by a scan, so that one of them is compiled and not each.
Compiling 48 layers for a TPU takes a quarter of an hour or more; the scan takes a minute or two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.model import PolicyShape
from ale_jax.model.compute import product, weight
from ale_jax.model.moe import RouterStats, moe
from ale_jax.model.params import Params

# A finite stand-in for -inf: a row whose keys are all masked (padding) must give numbers, not NaN.
MASKED = -1e30
# As many layers of one form in a row are scanned. For fewer, it does not pay that the scan needs a
# copy of their weights in which they are stacked.
SCANNED = 8


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * scale over the last axis, computed in float32."""
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * inverse * jnp.expand_dims(scale, range(x.ndim - 1))).astype(x.dtype)


def rotary(x_BTNH: jax.Array, position_BT: jax.Array, shape: PolicyShape) -> jax.Array:
    """Rotates pairs (i, i + H/2) of each head by position * frequency_i (the "half" layout)."""
    half = x_BTNH.shape[-1] // 2
    # float32: bfloat16 rounds 257 to 256, which would make two positions one.
    frequency = rotary_frequencies(shape)[None, None, None, :]
    angle = position_BT[:, :, None, None].astype(jnp.float32) * frequency
    cos, sin = jnp.cos(angle).astype(x_BTNH.dtype), jnp.sin(angle).astype(x_BTNH.dtype)
    a, b = x_BTNH[..., :half], x_BTNH[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rotary_frequencies(shape: PolicyShape) -> np.ndarray:
    """Radians per position of each pair, [H/2]: theta^(-2i/H).

    With `llama3_rope`, frequencies whose waves are long compared with the pretraining context are
    divided by `factor`, those with short waves are kept, and those in between are blended (as in
    transformers).
    """
    half = shape.head_width // 2
    frequency = shape.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
    if shape.llama3_rope:
        factor, low, high, trained = shape.llama3_rope
        waves = trained * frequency / (2 * np.pi)  # number of waves within the pretraining context
        kept = np.clip((waves - low) / (high - low), 0.0, 1.0)
        frequency = frequency * (kept + (1 - kept) / factor)
    return frequency.astype(np.float32)


def project_qkv(
    layer: Params, x_BTD: jax.Array, position_BT: jax.Array, shape: PolicyShape
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [B,T,N,H], keys and values [B,T,G,H]. With `qk_norm`, queries and keys are normalized
    per head; then they are rotated."""
    h_BTD = rms_norm(x_BTD, layer["attn_norm_D"], shape.norm_eps)
    q_BTNH = _by_head(h_BTD, weight(layer, "q_DNH", h_BTD.dtype))
    k_BTGH = _by_head(h_BTD, weight(layer, "k_DGH", h_BTD.dtype))
    v_BTGH = _by_head(h_BTD, weight(layer, "v_DGH", h_BTD.dtype))
    if shape.qkv_bias:
        q_BTNH = q_BTNH + layer["q_bias_NH"][None, None]
        k_BTGH = k_BTGH + layer["k_bias_GH"][None, None]
        v_BTGH = v_BTGH + layer["v_bias_GH"][None, None]
    if shape.qk_norm:
        q_BTNH = rms_norm(q_BTNH, layer["q_norm_H"], shape.norm_eps)
        k_BTGH = rms_norm(k_BTGH, layer["k_norm_H"], shape.norm_eps)
    return rotary(q_BTNH, position_BT, shape), rotary(k_BTGH, position_BT, shape), v_BTGH


def _by_head(x_BTD: jax.Array, weight_DNH: jax.Array) -> jax.Array:
    D, N, H = weight_DNH.shape
    return product(x_BTD, weight_DNH.reshape(D, N * H)).reshape(*x_BTD.shape[:-1], N, H)


def masked_attention(
    q_BTNH: jax.Array, k_BGMH: jax.Array, v_BGMH: jax.Array, mask_BTM: jax.Array
) -> jax.Array:
    """Computes the grouped-query attention of T queries over M keys, [B,T,N,H]. Products take
    inputs of the arrays' own type; scores and softmax are float32."""
    B, T, N, H = q_BTNH.shape
    G = k_BGMH.shape[1]
    # The r query heads that share a kv head become further queries of it, which leaves plain
    # batched products.
    r = N // G
    q_BGxH = q_BTNH.reshape(B, T, G, r, H).swapaxes(1, 2).reshape(B, G, T * r, H)
    score_BGxM = jnp.einsum("bgxh,bgmh->bgxm", q_BGxH, k_BGMH, preferred_element_type=jnp.float32)
    mask_BxM = jnp.repeat(mask_BTM, r, axis=1)
    score_BGxM = jnp.where(mask_BxM[:, None], score_BGxM * H**-0.5, MASKED)
    largest_BGx1 = jax.lax.stop_gradient(score_BGxM.max(axis=-1, keepdims=True))
    weight_BGxM = jnp.exp(score_BGxM - largest_BGx1)
    total_BGx1 = weight_BGxM.sum(axis=-1, keepdims=True)
    # The division by the total follows the product, which has fewer elements.
    weight_BGxM = weight_BGxM.astype(v_BGMH.dtype)
    out_BGxH = jnp.einsum(
        "bgxm,bgmh->bgxh", weight_BGxM, v_BGMH, preferred_element_type=jnp.float32
    )
    out_BGxH = (out_BGxH / total_BGx1).astype(v_BGMH.dtype)
    return out_BGxH.reshape(B, G, T, r, H).swapaxes(1, 2).reshape(B, T, N, H)


def project_out(layer: Params, out_BTNH: jax.Array) -> jax.Array:
    """Projects the outputs of the heads into the residual stream, [B,T,D]."""
    *rows, N, H = out_BTNH.shape
    o_NHD = weight(layer, "o_NHD", out_BTNH.dtype)
    return product(out_BTNH.reshape(*rows, N * H), o_NHD.reshape(N * H, -1))


def feed_forward(
    layer: Params, x_BTD: jax.Array, shape: PolicyShape, replay_BTK: jax.Array | None = None
) -> tuple[jax.Array, RouterStats | None]:
    """Computes SwiGLU, dense or as a mixture of experts. Also returns the router's statistics for
    the balancing loss. replay_BTK: see `moe.route`."""
    h_BTD = rms_norm(x_BTD, layer["ffn_norm_D"], shape.norm_eps)
    if "router_DE" not in layer:
        gate, up, down = (weight(layer, n, h_BTD.dtype) for n in ("gate_DF", "up_DF", "down_FD"))
        hidden_BTF = jax.nn.silu(product(h_BTD, gate)) * product(h_BTD, up)
        return product(hidden_BTF, down), None
    return moe(layer, h_BTD, shape, replay_BTK)


def apply_in_turn(
    apply: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    x: jax.Array,
    layers: Sequence[Any],
    for_scan: Callable[[Any], Any],
) -> tuple[jax.Array, list[Any]]:
    """Returns the last x of `x, out = apply(x, layer)` for each layer in turn, and the list of each
    out.

    layers: trees of arrays, which differ in form where the model's layers do. for_scan: what of a
    layer is stacked, which `apply` must accept in its place. Smaller is better.
    """
    outs: list[Any] = []
    for alike in runs(layers):
        if len(alike) < SCANNED:
            for layer in alike:
                x, out = apply(x, layer)
                outs.append(out)
            continue
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(for_scan, alike))
        x, stacked_outs = jax.lax.scan(apply, x, stacked)
        outs += [_each(stacked_outs, i) for i in range(len(alike))]
    return x, outs


def scanned(layers: Sequence[Any]) -> list[Any]:
    """Returns those of the layers that are scanned."""
    return [layer for alike in runs(layers) if len(alike) >= SCANNED for layer in alike]


def runs(layers: Sequence[Any]) -> Iterator[list[Any]]:
    """Yields the layers, in runs of one form."""
    for _, alike in itertools.groupby(layers, key=_form):
        yield list(alike)


def _form(layer: Any) -> tuple[Any, ...]:
    leaves, tree = jax.tree.flatten(layer)
    return tree, *((leaf.shape, leaf.dtype) for leaf in leaves)


def _each(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], stacked)
