"""One table describes every weight: shape, logical axes, init. All else is derived from it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import (
    Attention,
    Dense,
    FeedForward,
    GatedDelta,
    Latent,
    Layer,
    Mixer,
    Norm,
    PolicyShape,
    ShortConv,
)

Params = dict[str, Any]  # nested: {"embed_VD": array, "layers": [{...}, ...], ...}
Init = Callable[[jax.Array, tuple[int, ...], jnp.dtype], jax.Array]


Dims = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Param:
    """One weight: its shape, the logical axis of each dimension (see sharding.RULES), its init.

    matrix: (input dims, output dims) where the weight is a linear map, or a stack of them over its
    other dims; None for embeddings, norm scales and the router, whose rows are looked up or chosen
    one by one. Optimizers that treat matrices differently (Muon) need it.
    is_frozen: no gradient moves the weight, and nothing else may.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Init
    matrix: tuple[Dims, Dims] | None = None
    is_frozen: bool = False

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), (self.shape, self.axes)


# Weights that write into the residual stream start small. Each layer is then near the identity at
# first, and a token's own embedding can still be read after all layers. Learning to copy depends on
# that.
WRITER_GAIN = 0.1


@functools.cache  # so that equal weights of two layers are drawn by one program
def _normal(fan_in: int, gain: float = 1.0) -> Init:
    return jax.nn.initializers.normal(stddev=gain / math.sqrt(fan_in))


_ONES, _ZEROS = jax.nn.initializers.ones, jax.nn.initializers.zeros


def param_table(shape: PolicyShape) -> Params:
    """Returns the weights of a policy as a tree of `Param`, in the layout of the arrays
    themselves."""
    V, D = shape.vocab_size, shape.width
    table: Params = {
        "embed_VD": Param((V, D), ("vocab", "embed"), _normal(D)),
        "layers": [_layer_table(D, kind) for kind in shape.layers],
        **_block_norm("final_norm", D, shape.norm),
    }
    if not shape.tie_embeddings:
        table["head_DV"] = Param((D, V), ("embed", "vocab"), _normal(D))
    return table


def _layer_table(D: int, kind: Layer) -> Params:
    """One layer's weights. Their order is that of the keys of their initial values, which must not
    change from one version to the next."""
    return (
        _block_norms("attn", D, kind.norm)
        | _mixer_table(D, kind.mixer, kind.norm)
        | ({} if kind.parallel else _block_norms("ffn", D, kind.norm))
        | _feed_forward_table(D, kind.feed_forward)
        | ({"layer_scale_1": Param((1,), (None,), _ONES, is_frozen=True)} if kind.scaled else {})
    )


def _block_norms(block: str, D: int, norm: Norm) -> Params:
    table: Params = {}
    if norm.place != "after":
        table |= _block_norm(f"{block}_norm", D, norm)
    if norm.place != "before":
        table |= _block_norm(f"{block}_after_norm", D, norm)
    return table


def _block_norm(name: str, D: int, norm: Norm) -> Params:
    bias = {f"{name}_bias_D": Param((D,), ("norm",), _ZEROS)} if norm.bias else {}
    return {f"{name}_D": _norm(norm, (D,))} | bias


def _norm(norm: Norm, size: Dims) -> Param:
    axes = ("norm",) if len(size) == 1 else (None,) * len(size)
    return Param(size, axes, _ZEROS if norm.plus_one else _ONES)


def _mixer_table(D: int, kind: Mixer, norm: Norm) -> Params:
    match kind:
        case Latent():
            return _latent_table(D, kind)
        case GatedDelta():
            return _delta_table(D, kind)
        case ShortConv():
            return _short_conv_table(D, kind)
        case Attention():
            return _attention_table(D, kind, norm)


def _attention_table(D: int, kind: Attention, norm: Norm) -> Params:
    N, G, H = kind.num_heads, kind.num_kv_heads, kind.head_width
    Q = 2 * H if kind.gate else H
    table = {
        "q_DNH": Param((D, N, Q), ("embed", "heads", "head"), _normal(D), ((0,), (1, 2))),
        "k_DGH": Param((D, G, H), ("embed", "kv_heads", "head"), _normal(D), ((0,), (1, 2))),
        "v_DGH": Param((D, G, H), ("embed", "kv_heads", "head"), _normal(D), ((0,), (1, 2))),
        "o_NHD": Param(
            (N, H, D), ("heads", "head", "embed"), _normal(N * H, WRITER_GAIN), ((0, 1), (2,))
        ),
    }
    if kind.qk_norm == "head":
        table |= {"q_norm_H": _norm(norm, (H,)), "k_norm_H": _norm(norm, (H,))}
    if kind.qk_norm in ("each", "width"):
        table |= {"q_norm_NH": _norm(norm, (N, H)), "k_norm_GH": _norm(norm, (G, H))}
    if kind.bias:
        kv = Param((G, H), ("kv_heads", "head"), _ZEROS)
        q = Param((N, Q), ("heads", "head"), _ZEROS)
        table |= {"q_bias_NH": q, "k_bias_GH": kv, "v_bias_GH": kv}
    if kind.keys_as_values:
        table = {name: each for name, each in table.items() if not name.startswith("v_")}
    if kind.out_bias:
        table["o_bias_D"] = Param((D,), ("embed",), _ZEROS)
    if kind.sinks:
        table["sink_N"] = Param((N,), ("heads",), _ZEROS)
    return table


def _latent_table(D: int, kind: Latent) -> Params:
    """The weights of a latent are on every device of the axis "tensor", those of heads are not."""
    N, width, value = kind.num_heads, kind.expanded.head_width, kind.value_width

    def of_heads(rank: int, width: int) -> Param:
        axes = (None, "heads", "head")
        return Param((rank, N, width), axes, _normal(rank), ((0,), (1, 2)))

    def into(rank: int) -> Param:
        return Param((D, rank), ("embed", None), _normal(D), ((0,), (1,)))

    out = Param((N, value, D), ("heads", "head", "embed"), _normal(N * value, WRITER_GAIN))
    table = {
        "kv_down_DO": into(kind.stored_width),
        "kv_norm_O": Param((kind.kv_rank,), (None,), _ONES),
        "kv_up_ONH": of_heads(kind.kv_rank, kind.nope_width + value),
        "o_NHD": dataclasses.replace(out, matrix=((0, 1), (2,))),
    }
    if kind.q_rank:
        table |= {
            "q_down_DO": into(kind.q_rank),
            "q_norm_O": Param((kind.q_rank,), (None,), _ONES),
            "q_up_ONH": of_heads(kind.q_rank, width),
        }
    else:
        axes = ("embed", "heads", "head")
        table["q_DNH"] = Param((D, N, width), axes, _normal(D), ((0,), (1, 2)))
    if kind.bias:
        table["kv_down_bias_O"] = Param((kind.stored_width,), (None,), _ZEROS)
    if kind.bias and kind.q_rank:
        table["q_down_bias_O"] = Param((kind.q_rank,), (None,), _ZEROS)
    if kind.out_bias:
        table["o_bias_D"] = Param((D,), ("embed",), _ZEROS)
    return table


def _delta_table(D: int, kind: GatedDelta) -> Params:
    G, N, i = kind.num_key_heads, kind.num_value_heads, kind.conv_width
    H, h = kind.key_width, kind.value_width

    def into(axis: str, *heads: int) -> Param:
        axes, out = ("embed", axis, "head"), tuple(range(1, 1 + len(heads)))
        return Param((D, *heads), axes[: 1 + len(heads)], _normal(D), ((0,), out))

    def filters(axis: str, *heads: int) -> Param:
        return Param((*heads, i), (axis, "head", None), _normal(i))

    of_heads = ("heads",)
    return {
        "delta_q_DGH": into("kv_heads", G, H),
        "delta_k_DGH": into("kv_heads", G, H),
        "delta_v_DNh": into("heads", N, h),
        "delta_gate_DNh": into("heads", N, h),
        "delta_beta_DN": into("heads", N),
        "delta_rate_DN": into("heads", N),
        "delta_conv_q_GHi": filters("kv_heads", G, H),
        "delta_conv_k_GHi": filters("kv_heads", G, H),
        "delta_conv_v_Nhi": filters("heads", N, h),
        "delta_decay_N": Param((N,), of_heads, _log_uniform),
        "delta_decay_bias_N": Param((N,), of_heads, _ONES),
        "delta_norm_h": Param((h,), ("norm",), _ONES),
        "delta_o_NhD": Param(
            (N, h, D), ("heads", "head", "embed"), _normal(N * h, WRITER_GAIN), ((0, 1), (2,))
        ),
    }


def _short_conv_table(D: int, kind: ShortConv) -> Params:
    C, i = kind.width, kind.conv_width
    into = Param((D, C), ("embed", "ffw"), _normal(D), ((0,), (1,)))
    out = Param((C, D), ("ffw", "embed"), _normal(C, WRITER_GAIN), ((0,), (1,)))
    parts = ("before", "after", "x")
    table = {f"short_{each}_DC": into for each in parts}
    table |= {"short_conv_Ci": Param((C, i), ("ffw", None), _normal(i)), "short_out_CD": out}
    if kind.bias:
        inner = Param((C,), ("ffw",), _ZEROS)
        table |= {f"short_{each}_bias_C": inner for each in (*parts, "conv")}
        table["short_out_bias_D"] = Param((D,), ("embed",), _ZEROS)
    return table


def _log_uniform(key: jax.Array, size: Dims, dtype: jnp.dtype) -> jax.Array:
    """The logarithm of what is uniform over the rates with which such models begin."""
    return jnp.log(jax.random.uniform(key, size, dtype, 0.01, 16.0))


def _feed_forward_table(D: int, kind: FeedForward) -> Params:
    if isinstance(kind, Dense):
        table = _gated(D, kind.width)
        if kind.bias:
            inner = Param((kind.width,), ("ffw",), _ZEROS)
            outer = Param((D,), ("embed",), _ZEROS)
            table |= {"gate_bias_F": inner, "up_bias_F": inner, "down_bias_D": outer}
        return {n: each for n, each in table.items() if kind.gated or not n.startswith("gate")}
    E, F = kind.num, kind.width
    table = {
        "router_DE": Param((D, E), ("embed", None), _normal(D)),
        "gate_EDF": Param((E, D, F), ("experts", "embed", "ffw"), _normal(D), ((1,), (2,))),
        "up_EDF": Param((E, D, F), ("experts", "embed", "ffw"), _normal(D), ((1,), (2,))),
        "down_EFD": Param(
            (E, F, D), ("experts", "ffw", "embed"), _normal(F, WRITER_GAIN), ((1,), (2,))
        ),
    }
    if kind.bias:
        inner = Param((E, F), ("experts", "ffw"), _ZEROS)
        outer = Param((E, D), ("experts", "embed"), _ZEROS)
        table |= {"gate_bias_EF": inner, "up_bias_EF": inner, "down_bias_ED": outer}
    if kind.router_bias:
        table["router_logit_bias_E"] = Param((E,), (None,), _ZEROS)
    if kind.choice_bias:
        table["router_bias_E"] = Param((E,), (None,), _ZEROS, is_frozen=True)
    if kind.shared:
        table |= {f"shared_{name}": each for name, each in _gated(D, kind.shared).items()}
    if kind.shared_gate:
        table["shared_share_D1"] = Param((D, 1), ("embed", None), _normal(D))
    return table


def _gated(D: int, F: int) -> Params:
    return {
        "gate_DF": Param((D, F), ("embed", "ffw"), _normal(D), ((0,), (1,))),
        "up_DF": Param((D, F), ("embed", "ffw"), _normal(D), ((0,), (1,))),
        "down_FD": Param((F, D), ("ffw", "embed"), _normal(F, WRITER_GAIN), ((0,), (1,))),
    }


def is_param(leaf: object) -> bool:
    return isinstance(leaf, Param)


def init_params(key: jax.Array, shape: PolicyShape, dtype: jnp.dtype = jnp.float32) -> Params:
    """Draws random weights of a policy."""
    return init_table(key, param_table(shape), dtype)


def init_table(key: jax.Array, table: Params, dtype: jnp.dtype = jnp.float32) -> Params:
    """Draws random weights; the key of each is derived from its index in the table."""
    leaves, tree = jax.tree.flatten(table, is_leaf=is_param)
    arrays = [p.init(jax.random.fold_in(key, i), p.shape, dtype) for i, p in enumerate(leaves)]
    return jax.tree.unflatten(tree, arrays)


def count_params(shape: PolicyShape) -> tuple[int, int]:
    """(all weights, weights active for one token): only K of E experts are active."""
    total = active = 0
    for p in jax.tree.leaves(param_table(shape), is_leaf=is_param):
        size = math.prod(p.shape)
        total += size
        routed = "experts" in p.axes
        active += size * shape.experts_per_token // shape.num_experts if routed else size
    return total, active
