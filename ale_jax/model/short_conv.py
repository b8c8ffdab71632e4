"""The mixer of a short convolution, over packed rows and over new tokens of conversations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.config.architecture import ShortConv
from ale_jax.model.compute import linear
from ale_jax.model.convolution import causal_convolution, last_inputs, packed_runs
from ale_jax.model.params import Params


@struct.dataclass
class ConvState:
    """What a short convolution keeps of conversations: its last i - 1 inputs."""

    x_BCi: jax.Array

    @classmethod
    def zeros(cls, conversations: int, kind: ShortConv, dtype: jnp.dtype) -> ConvState:
        return cls(jnp.zeros((conversations, kind.width, kind.conv_width - 1), dtype))


def packed_conv(
    layer: Params, h_BTD: jax.Array, segment_BT: jax.Array, kind: ShortConv
) -> jax.Array:
    """Returns what the mixer makes of packed rows, [B,T,D]. No segment sees another."""
    nothing = ConvState.zeros(len(h_BTD), kind, h_BTD.dtype)
    return _mixed(layer, h_BTD, packed_runs(segment_BT), nothing, kind)[0]


def extended_conv(
    layer: Params, h_BTD: jax.Array, is_real_BT: jax.Array, state: ConvState, kind: ShortConv
) -> tuple[jax.Array, ConvState]:
    """Returns what the mixer makes of new tokens of conversations, [B,T,D], and the state after
    those that are real, which are the first ones of each row."""
    run_BT = jnp.zeros(is_real_BT.shape, jnp.int32)
    out_BTD, x_BTC = _mixed(layer, h_BTD, run_BT, state, kind)
    old_BiC = jnp.moveaxis(state.x_BCi, -1, 1)
    new_BiC = last_inputs(x_BTC, old_BiC, is_real_BT.sum(axis=1))
    return out_BTD, ConvState(jnp.moveaxis(new_BiC, 1, -1))


def _mixed(
    layer: Params, h_BTD: jax.Array, run_BT: jax.Array, state: ConvState, kind: ShortConv
) -> tuple[jax.Array, jax.Array]:
    """The outputs, and the inputs of the convolution [B,T,C]."""
    before_BTC, after_BTC, x_BTC = (
        _biased(linear(layer, f"short_{each}_DC", h_BTD), layer, f"short_{each}_bias_C", kind)
        for each in ("before", "after", "x")
    )
    x_BTC = before_BTC * x_BTC
    conv_BTC = causal_convolution(
        x_BTC.astype(jnp.float32),
        layer["short_conv_Ci"].astype(jnp.float32),
        jnp.moveaxis(state.x_BCi, -1, 1).astype(jnp.float32),
        run_BT,
    )
    conv_BTC = _biased(conv_BTC, layer, "short_conv_bias_C", kind).astype(h_BTD.dtype)
    out_BTD = linear(layer, "short_out_CD", after_BTC * conv_BTC)
    return _biased(out_BTD, layer, "short_out_bias_D", kind), x_BTC


def _biased(x_BT: jax.Array, layer: Params, name: str, kind: ShortConv) -> jax.Array:
    return x_BT + layer[name][None, None] if kind.bias else x_BT
