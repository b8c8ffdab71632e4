"""The mixer of a gated delta layer, over packed rows and over new tokens of conversations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.config.architecture import GatedDelta, Norm
from ale_jax.model.compute import linear
from ale_jax.model.convolution import causal_convolution, last_inputs, packed_runs
from ale_jax.model.gated_delta import DeltaTokens, delta_rule
from ale_jax.model.layers import normalise
from ale_jax.model.params import Params

# Under the root of a sum of squares, as in transformers and in the kernels that models are trained
# with.
_EPS = 1e-6
PARTS = ("q", "k", "v")


@struct.dataclass
class DeltaState:
    """What a gated delta layer keeps of conversations: the state of the rule, float32, and the last
    i - 1 inputs of its convolution. Heads follow the conversations in all arrays, so that all are
    sharded alike."""

    state_BNHh: jax.Array
    q_BGHi: jax.Array
    k_BGHi: jax.Array
    v_BNhi: jax.Array

    @classmethod
    def zeros(cls, conversations: int, kind: GatedDelta, dtype: jnp.dtype) -> DeltaState:
        B, G, N = conversations, kind.num_key_heads, kind.num_value_heads
        H, h, i = kind.key_width, kind.value_width, kind.conv_width - 1
        q, v = jnp.zeros((B, G, H, i), dtype), jnp.zeros((B, N, h, i), dtype)
        return cls(jnp.zeros((B, N, H, h), jnp.float32), q, jnp.zeros_like(q), v)


def packed_delta(
    layer: Params, h_BTD: jax.Array, segment_BT: jax.Array, kind: GatedDelta, eps: float
) -> jax.Array:
    """Returns what the mixer makes of packed rows, [B,T,D]. Each segment begins with an empty
    state, so that none sees another. eps: of the norm of the heads' outputs."""
    nothing = DeltaState.zeros(len(h_BTD), kind, h_BTD.dtype)
    out_BTNh, _ = _mixed(layer, h_BTD, packed_runs(segment_BT), None, nothing, kind)
    return _project_out(layer, out_BTNh, h_BTD, eps)


def extended_delta(
    layer: Params,
    h_BTD: jax.Array,
    is_real_BT: jax.Array,
    state: DeltaState,
    kind: GatedDelta,
    eps: float,
) -> tuple[jax.Array, DeltaState]:
    """Returns what the mixer makes of new tokens of conversations, [B,T,D], and the state after
    those that are real, which are the first ones of each row."""
    run_BT = jnp.zeros(is_real_BT.shape, jnp.int32)
    out_BTNh, state = _mixed(layer, h_BTD, run_BT, is_real_BT, state, kind)
    return _project_out(layer, out_BTNh, h_BTD, eps), state


def _mixed(
    layer: Params,
    h_BTD: jax.Array,
    run_BT: jax.Array,
    is_real_BT: jax.Array | None,
    state: DeltaState,
    kind: GatedDelta,
) -> tuple[jax.Array, DeltaState]:
    """The outputs of the heads, [B,T,N,h] float32, and the state after the real tokens; None: all
    are."""
    x_BTNH = {each: linear(layer, f"delta_{each}_D{_heads(each)}", h_BTD) for each in PARTS}
    old = {"q": state.q_BGHi, "k": state.k_BGHi, "v": state.v_BNhi}
    old_BiNH = {each: jnp.moveaxis(old[each], -1, 1) for each in PARTS}
    q, k, v = (
        jax.nn.silu(
            causal_convolution(
                x_BTNH[each].astype(jnp.float32),
                layer[f"delta_conv_{each}_{_heads(each)}i"].astype(jnp.float32),
                old_BiNH[each].astype(jnp.float32),
                run_BT,
            )
        )
        for each in PARTS
    )
    decay_BTN, beta_BTN = _gates(layer, h_BTD)
    if is_real_BT is not None:
        decay_BTN, beta_BTN = (
            jnp.where(is_real_BT[..., None], x, 0.0) for x in (decay_BTN, beta_BTN)
        )
    tokens = DeltaTokens(_unit(q) * kind.key_width**-0.5, _unit(k), v, decay_BTN, beta_BTN)
    out_BTNh, state_BNHh = delta_rule(tokens, run_BT, state.state_BNHh)
    if is_real_BT is None:
        return out_BTNh, state
    count_B = is_real_BT.sum(axis=1)
    new = (
        jnp.moveaxis(last_inputs(x_BTNH[each], old_BiNH[each], count_B), 1, -1) for each in PARTS
    )
    return out_BTNh, DeltaState(state_BNHh, *new)


def _heads(part: str) -> str:
    return "Nh" if part == "v" else "GH"


def _gates(layer: Params, h_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The logarithm of each token's decay, and its strength, [B,T,N] float32."""
    rate_BTN, beta_BTN = (
        linear(layer, name, h_BTD).astype(jnp.float32)
        for name in ("delta_rate_DN", "delta_beta_DN")
    )
    rate_BTN = jax.nn.softplus(rate_BTN + layer["delta_decay_bias_N"][None, None])
    return -jnp.exp(layer["delta_decay_N"])[None, None] * rate_BTN, jax.nn.sigmoid(beta_BTN)


def _unit(x_BTGH: jax.Array) -> jax.Array:
    return x_BTGH * jax.lax.rsqrt((x_BTGH * x_BTGH).sum(axis=-1, keepdims=True) + _EPS)


def _project_out(layer: Params, out_BTNh: jax.Array, h_BTD: jax.Array, eps: float) -> jax.Array:
    """Normalises and gates the outputs of the heads, and projects them to the residual stream."""
    gate_BTNh = linear(layer, "delta_gate_DNh", h_BTD).astype(jnp.float32)
    out_BTNh = normalise(out_BTNh, layer["delta_norm_h"], Norm(eps)) * jax.nn.silu(gate_BTNh)
    return linear(layer, "delta_o_NhD", out_BTNh.astype(h_BTD.dtype), inputs=2)
