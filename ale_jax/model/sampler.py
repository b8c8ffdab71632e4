"""Draws tokens from logits, and the state of each slot that this needs."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.config.engine import GREEDY_BELOW
from ale_jax.model.guides import Guides, apply_biases, apply_masks, most_probable, packed


@struct.dataclass
class SlotState:
    """State of each slot [S]: the last token (not in the cache yet), its position, the number of
    tokens that may still be decoded, the key data of its conversation, and how to sample. A slot
    with budget 0 is idle.

    continues: the first three are those at the end of the dispatch before, not these.
    """

    token_S: jax.Array  # int32
    position_S: jax.Array  # int32
    budget_S: jax.Array  # int32
    key_S2: jax.Array  # uint32, threefry key data
    temperature_S: jax.Array  # float32
    top_k_S: jax.Array  # int32
    top_p_S: jax.Array  # float32
    min_p_S: jax.Array  # float32
    continues_S: jax.Array  # bool


@struct.dataclass
class SamplerOutput:
    """One token per slot [S], its log-probability as sampled (mu), and its log-probability under
    the plain softmax, of the tokens that are allowed (plain). top: see `most_probable`, under the
    same distribution as plain; None without guides. left_Sw: the tokens that could be drawn, as bit
    fields; None if they are not recorded."""

    token_S: jax.Array
    logp_mu_S: jax.Array
    logp_plain_S: jax.Array
    top_id_Sk: jax.Array | None = None
    top_logp_Sk: jax.Array | None = None
    left_Sw: jax.Array | None = None


def sample(
    logits_SV: jax.Array,
    state: SlotState,
    guides: Guides | None = None,
    step: jax.Array | int = 0,
    record_left: bool = False,
) -> SamplerOutput:
    """Draws a token of each slot. The key of a draw depends on (conversation, position) alone, not
    on the slot or the batch.

    step: of the decode steps that the guides are for. record_left: whether to tell which tokens
    could be drawn.
    """
    logits_SV = apply_masks(logits_SV, guides, step)
    plain_SV = jax.nn.log_softmax(logits_SV, axis=-1)
    logits_SV = apply_biases(logits_SV, guides)
    greedy_S = state.temperature_S < GREEDY_BELOW
    scale_S = jnp.where(greedy_S, 1.0, state.temperature_S)
    cuts_S = (state.top_k_S > 0) | (state.top_p_S < 1) | (state.min_p_S > 0)
    mu_SV = jax.lax.cond(
        cuts_S.any(),
        _cut_rows,
        lambda logits_SV, *_: logits_SV,
        logits_SV / scale_S[:, None],
        cuts_S,
        state.top_k_S,
        state.top_p_S,
        state.min_p_S,
    )
    left_Sw = packed(mu_SV > -jnp.inf) if record_left else None
    mu_SV = jax.nn.log_softmax(mu_SV, axis=-1)
    drawn_S = jax.vmap(_draw)(state.key_S2, state.position_S, mu_SV)
    token_S = jnp.where(greedy_S, _most_probable(logits_SV), drawn_S)
    logp_plain_S = jnp.take_along_axis(plain_SV, token_S[:, None], axis=-1)[:, 0]
    logp_mu_S = jnp.where(
        greedy_S, 0.0, jnp.take_along_axis(mu_SV, token_S[:, None], axis=-1)[:, 0]
    )
    sampled = SamplerOutput(token_S, logp_mu_S, logp_plain_S, left_Sw=left_Sw)
    if guides is None:
        return sampled
    top_id_Sk, top_logp_Sk = most_probable(plain_SV, guides)
    return dataclasses.replace(sampled, top_id_Sk=top_id_Sk, top_logp_Sk=top_logp_Sk)


def _most_probable(logits_SV: jax.Array) -> jax.Array:
    """The argmax of each row. CPUs compute `jnp.argmax` one number at a time."""
    V = logits_SV.shape[1]
    is_best_SV = logits_SV >= logits_SV.max(axis=-1, keepdims=True)
    return jnp.where(is_best_SV, jnp.arange(V)[None, :], V - 1).min(axis=-1)


def _draw(key_data: jax.Array, position: jax.Array, logp_V: jax.Array) -> jax.Array:
    """One random number picks a block of the vocabulary by its probability, another picks a token
    within the block.

    Noise for every token would cost more than the rest of a small policy's decode step.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(key_data), position)
    of_block, of_token = jax.random.uniform(key, (2,))
    V = logp_V.shape[0]
    size = math.isqrt(V - 1) + 1
    prob_Zv = jnp.pad(jnp.exp(logp_V), (0, -V % size)).reshape(-1, size)
    block = _pick(prob_Zv.sum(axis=1), of_block)
    return (block * size + _pick(prob_Zv[block], of_token)).astype(jnp.int32)


def _pick(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """An index, with probability proportional to its mass; never one without mass."""
    up_to, index = jnp.cumsum(mass), jnp.arange(len(mass))
    found = (up_to <= uniform * up_to[-1]).sum()
    # XLA sums in tiles, so that rounding may change the sum where there is no mass.
    last = jnp.where(mass > 0, index, 0).max()
    return jnp.where((mass > 0) & (index >= found), index, last).min()


def _cut_rows(
    logits_SV: jax.Array,
    cuts_S: jax.Array,
    top_k_S: jax.Array,
    top_p_S: jax.Array,
    min_p_S: jax.Array,
) -> jax.Array:
    """Sorts the vocabulary. Rows without truncation are returned bitwise unchanged."""
    cut_SV = jax.vmap(_cut)(logits_SV, top_k_S, top_p_S, min_p_S)
    return jnp.where(cuts_S[:, None], cut_SV, logits_SV)


def _cut(logits_V: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array) -> jax.Array:
    """Keeps the top_k largest, of these the fewest whose probability reaches top_p, and of these
    those that have min_p of the largest probability."""
    V = logits_V.shape[0]
    order_V = jnp.argsort(-logits_V)
    rank = jnp.where(top_k > 0, top_k, V)
    kept_V = jnp.where(jnp.arange(V) < rank, logits_V[order_V], -jnp.inf)
    prob_V = jax.nn.softmax(kept_V)
    before_V = jnp.cumsum(prob_V) - prob_V
    # The first one also where top_p is so small that float32 makes it 0.
    reached_V = (before_V < top_p) | (jnp.arange(V) == 0)
    kept_V = jnp.where(reached_V & (prob_V >= min_p * prob_V[0]), kept_V, -jnp.inf)
    return jnp.full_like(logits_V, -jnp.inf).at[order_V].set(kept_V)
