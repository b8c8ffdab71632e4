"""The layers of a decoder as functions of arrays. Sampler and learner share all of them.

The layers of a deep model are applied by a scan, so that one of them is compiled and not each.
Compiling 48 layers for a TPU takes a quarter of an hour or more; the scan takes a minute or two.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Attention, Dense, Latent, Layer, Norm, PolicyShape
from ale_jax.model.blockwise_attention import by_query, scores
from ale_jax.model.compute import linear, scaled
from ale_jax.model.gates import activated, gated
from ale_jax.model.moe import RouterStats, moe
from ale_jax.model.params import Params
from ale_jax.model.rope import grown, rotary

# A finite stand-in for -inf: a row whose keys are all masked (padding) must give numbers, not NaN.
MASKED = -1e30
# As many layers of one pattern in a row are scanned. For fewer, it does not pay that the scan needs
# a copy of their weights in which they are stacked.
SCANNED = 8
PERIOD = 8  # layers of a pattern, at most; Gemma 3 has five with a window, then one without


def normalise(
    x: jax.Array,
    weight: jax.Array | None,
    norm: Norm,
    axes: int = 1,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Returns x / rms(x) * weight + bias, of centred norms without its mean, over as many of the
    last axes; in float32. weight, bias: of these, or of more of the last ones; None: there is
    none."""
    over = tuple(range(x.ndim - axes, x.ndim))
    x32 = x.astype(jnp.float32)
    if norm.centred:
        x32 = x32 - jnp.mean(x32, axis=over, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=over, keepdims=True) + norm.eps)
    x32 = x32 * inverse
    if weight is not None:
        scale = 1.0 + weight.astype(jnp.float32) if norm.plus_one else weight
        x32 = x32 * jnp.expand_dims(scale, range(x.ndim - weight.ndim))
    if bias is not None:
        x32 = x32 + jnp.expand_dims(bias, range(x.ndim - bias.ndim))
    return x32.astype(x.dtype)


def project_qkv(
    layer: Params, x_BTD: jax.Array, position_BT: jax.Array, kind: Layer
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [B,T,N,H], keys and values [B,T,G,H] of a block's input, normalised and rotated as
    the layer's kind says."""
    attention = kind.mixer
    assert isinstance(attention, Attention)
    q_BTNH = linear(layer, "q_DNH", x_BTD)[..., : attention.head_width]
    k_BTGH = linear(layer, "k_DGH", x_BTD)
    if attention.bias:
        q_BTNH = q_BTNH + layer["q_bias_NH"][None, None, :, : attention.head_width]
        k_BTGH = k_BTGH + layer["k_bias_GH"][None, None]
    v_BTGH = _values(layer, x_BTD, k_BTGH, kind)
    if attention.qk_norm:
        shared, axes = attention.qk_norm == "head", 2 if attention.qk_norm == "width" else 1
        q_name, k_name = ("q_norm_H", "k_norm_H") if shared else ("q_norm_NH", "k_norm_GH")
        q_BTNH = normalise(q_BTNH, layer[q_name], kind.norm, axes)
        k_BTGH = normalise(k_BTGH, layer[k_name], kind.norm, axes)
    if attention.rope:
        q_BTNH = rotary(q_BTNH, position_BT, attention.rope)
        k_BTGH = rotary(k_BTGH, position_BT, attention.rope)
    if attention.growth:
        q_BTNH = grown(q_BTNH, position_BT, attention.growth)
    return q_BTNH, k_BTGH, v_BTGH


def _values(layer: Params, x_BTD: jax.Array, k_BTGH: jax.Array, kind: Layer) -> jax.Array:
    """Values [B,T,G,H]. k_BTGH: keys before their norm."""
    attention = kind.mixer
    assert isinstance(attention, Attention)
    v_BTGH = k_BTGH if attention.keys_as_values else linear(layer, "v_DGH", x_BTD)
    if attention.bias and not attention.keys_as_values:
        v_BTGH = v_BTGH + layer["v_bias_GH"][None, None]
    return normalise(v_BTGH, None, kind.norm) if attention.value_norm else v_BTGH


def masked_attention(
    q_BTNH: jax.Array,
    k_BGMH: jax.Array,
    v_BGMH: jax.Array,
    mask_BTM: jax.Array,
    kind: Attention,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """Computes the grouped-query attention of T queries over M keys, [B,T,N,H] with the width of
    the values. Products take inputs of the arrays' own type; scores and softmax are float32.
    sink_N: of a kind that has sinks."""
    B, T, N, H = q_BTNH.shape
    G = k_BGMH.shape[1]
    # The r query heads that share a kv head become further queries of it, which leaves plain
    # batched products.
    r = N // G
    q_BGxH = q_BTNH.reshape(B, T, G, r, H).swapaxes(1, 2).reshape(B, G, T * r, H)
    score_BGxM = jnp.einsum("bgxh,bgmh->bgxm", q_BGxH, k_BGMH, preferred_element_type=jnp.float32)
    mask_BxM = jnp.repeat(mask_BTM, r, axis=1)
    score_BGxM = jnp.where(mask_BxM[:, None], scores(score_BGxM, kind), MASKED)
    largest_BGx1 = jax.lax.stop_gradient(score_BGxM.max(axis=-1, keepdims=True))
    if sink_N is not None:
        sink_1Gx1 = by_query(sink_N, G, T)[..., None]
        largest_BGx1 = jnp.maximum(largest_BGx1, jax.lax.stop_gradient(sink_1Gx1))
    weight_BGxM = jnp.exp(score_BGxM - largest_BGx1)
    total_BGx1 = weight_BGxM.sum(axis=-1, keepdims=True)
    if sink_N is not None:
        total_BGx1 += jnp.exp(sink_1Gx1 - largest_BGx1)
    # The division by the total follows the product, which has fewer elements.
    weight_BGxM = weight_BGxM.astype(v_BGMH.dtype)
    out_BGxH = jnp.einsum(
        "bgxm,bgmh->bgxh", weight_BGxM, v_BGMH, preferred_element_type=jnp.float32
    )
    out_BGxH = (out_BGxH / total_BGx1).astype(v_BGMH.dtype)
    return out_BGxH.reshape(B, G, T, r, -1).swapaxes(1, 2).reshape(B, T, N, -1)


def project_out(
    layer: Params, out_BTNH: jax.Array, x_BTD: jax.Array, kind: Attention | Latent
) -> jax.Array:
    """Projects the outputs of the heads to the width of the residual stream, [B,T,D]. x_BTD: the
    block's input, which their gates depend on."""
    if isinstance(kind, Attention) and kind.gate:
        out_BTNH = out_BTNH * jax.nn.sigmoid(_output_gate(layer, x_BTD, kind))
    out_BTD = linear(layer, "o_NHD", out_BTNH, inputs=2)
    return out_BTD + layer["o_bias_D"][None, None] if kind.out_bias else out_BTD


def _output_gate(layer: Params, x_BTD: jax.Array, kind: Attention) -> jax.Array:
    # The compiler finds that `project_qkv` computes the same product.
    gate_BTNH = linear(layer, "q_DNH", x_BTD)[..., kind.head_width :]
    if kind.bias:
        gate_BTNH = gate_BTNH + layer["q_bias_NH"][None, None, :, kind.head_width :]
    return gate_BTNH


def feed_forward(
    layer: Params, x_BTD: jax.Array, kind: Layer, replay_BTK: jax.Array | None = None
) -> tuple[jax.Array, RouterStats | None]:
    """Computes the feed-forward of a block's input, dense or as a mixture of experts. Also
    returns the router's statistics for the balancing loss. replay_BTK: see `moe.route`."""
    if isinstance(kind.feed_forward, Dense):
        return _dense(layer, x_BTD, kind.feed_forward), None
    return moe(layer, x_BTD, kind.feed_forward, replay_BTK)


def _dense(layer: Params, x_BTD: jax.Array, kind: Dense) -> jax.Array:
    def product(x_BT: jax.Array, name: str, out: str) -> jax.Array:
        y_BT = linear(layer, f"{name}_{out}", x_BT)
        return y_BT + layer[f"{name}_bias_{out[-1]}"][None, None] if kind.bias else y_BT

    up_BTF = product(x_BTD, "up", "DF")
    if kind.gated:
        inner_BTF = gated(product(x_BTD, "gate", "DF"), up_BTF, kind.activation)
    else:
        inner_BTF = activated(up_BTF, kind.activation)
    return product(inner_BTF, "down", "FD")


def block_input(layer: Params, x_BTD: jax.Array, kind: Layer, block: str) -> jax.Array:
    """Returns what a block of a layer is given of the residual stream. block: "attn" or "ffn"."""
    if kind.norm.place == "after":
        return x_BTD
    return _normed(layer, f"{block}_norm", x_BTD, kind.norm)


def _normed(params: Params, name: str, x_BTD: jax.Array, norm: Norm) -> jax.Array:
    """x as the norm of this name makes it."""
    bias_D = params[f"{name}_bias_D"] if norm.bias else None
    return normalise(x_BTD, params[f"{name}_D"], norm, bias=bias_D)


Block = Callable[[jax.Array], tuple[jax.Array, Any]]


def residual_blocks(
    layer: Params,
    x_BTD: jax.Array,
    kind: Layer,
    mix: Block,
    feed: Block,
    kept: Callable[[jax.Array], jax.Array] = lambda x_BTD: x_BTD,
) -> tuple[jax.Array, Any, Any]:
    """Applies the two blocks of a layer to the residual stream. Also returns what each block
    returns beside.

    mix, feed: map the block's input [B,T,D] to its output and something else. kept: what of the
    stream the output of `feed` is added to.
    """

    def added(h_BTD: jax.Array, block: Block, name: str) -> tuple[jax.Array, Any]:
        y_BTD, beside = block(h_BTD)
        if kind.norm.place != "before":
            y_BTD = _normed(layer, f"{name}_after_norm", y_BTD, kind.norm)
        return scaled(y_BTD, kind.residual), beside

    h_BTD = block_input(layer, x_BTD, kind, "attn")
    y_BTD, of_mixer = added(h_BTD, mix, "attn")
    x_BTD = x_BTD + y_BTD
    if not kind.parallel:
        h_BTD = block_input(layer, x_BTD, kind, "ffn")
    y_BTD, of_feed = added(h_BTD, feed, "ffn")
    x_BTD = kept(x_BTD) + y_BTD
    if kind.scaled:
        x_BTD = x_BTD * layer["layer_scale_1"][None, None].astype(x_BTD.dtype)
    return x_BTD, of_mixer, of_feed


def final_hidden(params: Params, x_BTD: jax.Array, shape: PolicyShape) -> jax.Array:
    """Returns what the head is applied to, [B,T,D], of the residual stream after all layers."""
    return scaled(_normed(params, "final_norm", x_BTD, shape.norm), shape.hidden_scale)


def apply_in_turn(
    apply: Callable[[Layer, jax.Array, Any], tuple[jax.Array, Any]],
    x: jax.Array,
    kinds: Sequence[Layer],
    layers: Sequence[Any],
    for_scan: Callable[[Any], Any],
) -> tuple[jax.Array, list[Any]]:
    """Returns the last x of `x, out = apply(kind, x, layer)` for each layer in turn, and the list
    of each out.

    layers: trees of arrays, which differ in form where the model's layers do. for_scan: what of a
    layer is stacked, which `apply` must accept in its place. Smaller is better.
    """
    outs: list[Any] = []

    def step(period: Sequence[Layer], x: jax.Array, layers: Sequence[Any]):
        outs = []
        for kind, layer in zip(period, layers, strict=True):
            x, out = apply(kind, x, layer)
            outs.append(out)
        return x, outs

    for start, period, repeats in _blocks(kinds, layers):
        of_one, block = kinds[start : start + period], layers[start : start + period * repeats]
        if repeats == 1:
            x, more = step(of_one, x, block)
            outs += more
            continue
        stacked = [
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(for_scan, block[i::period]))
            for i in range(period)
        ]
        x, more = jax.lax.scan(functools.partial(step, of_one), x, stacked)
        outs += [_each(more[i % period], i // period) for i in range(len(block))]
    return x, outs


def scanned(kinds: Sequence[Layer], layers: Sequence[Any]) -> list[Any]:
    """Returns those of the layers that are scanned."""
    return [
        layer
        for start, period, repeats in _blocks(kinds, layers)
        if repeats > 1
        for layer in layers[start : start + period * repeats]
    ]


def _blocks(kinds: Sequence[Layer], layers: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """Cuts the layers into blocks, (start, period, repeats). Layers that repeat a pattern of kinds
    and forms are a block, if there are at least SCANNED of them and it comes three times or more;
    any other layer is one of its own."""
    forms = [(kind, *_form(layer)) for kind, layer in zip(kinds, layers, strict=True)]
    start = 0
    while start < len(forms):
        found = ((period, _repeats(forms[start:], period)) for period in range(1, PERIOD + 1))
        period, repeats = next(((p, n) for p, n in found if n > 2 and p * n >= SCANNED), (1, 1))
        yield start, period, repeats
        start += period * repeats


def _repeats(forms: Sequence[Any], period: int) -> int:
    """How often the first `period` forms follow each other."""
    same = itertools.takewhile(lambda i: forms[i] == forms[i % period], range(len(forms)))
    return len(list(same)) // period


def _form(layer: Any) -> tuple[Any, ...]:
    leaves, tree = jax.tree.flatten(layer)
    return tree, *((leaf.shape, leaf.dtype) for leaf in leaves)


def _each(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], stacked)
