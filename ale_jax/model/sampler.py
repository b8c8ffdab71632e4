"""Sampling kernels: chunked prefill, and a burst of decode steps in one dispatch.

The engine (rollout/engine.py) owns the schedule; here are only jitted functions of arrays.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.model.cache import Cache, extend
from ale_jax.model.params import Params
from ale_jax.model.policy import logits
from ale_jax.model.shape import PolicyShape


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How one request is sampled. temperature 0 takes the most probable token; top_k 0 and top_p 1
    cut nothing. Cuts apply after the temperature, top_k before top_p, as transformers does."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature} must be >= 0 (0 = most probable)")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"top_k {self.top_k} must be >= 0, top_p {self.top_p} in (0, 1]")

    @property
    def cuts(self) -> bool:
        return self.top_k > 0 or self.top_p < 1


@struct.dataclass
class SlotState:
    """Per slot [S]: the last token (not in the cache yet), its position, tokens that it may still
    write, key data of its conversation, how to sample. A slot with budget 0 rests."""

    token_S: jax.Array  # int32
    position_S: jax.Array  # int32
    budget_S: jax.Array  # int32
    key_S2: jax.Array  # uint32, threefry key data
    temperature_S: jax.Array  # float32
    top_k_S: jax.Array  # int32
    top_p_S: jax.Array  # float32


@struct.dataclass
class Burst:
    """What n decode steps wrote, [n,S]: token (-1 where the slot rested), log-probability under
    the sampled distribution (mu) and under the model's plain softmax (old)."""

    token_nS: jax.Array
    logp_mu_nS: jax.Array
    logp_old_nS: jax.Array


@partial(jax.jit, static_argnames="shape", donate_argnames="cache")
def prefill(
    params: Params,
    cache: Cache,
    slot_B: jax.Array,
    tokens_BT: jax.Array,
    start_B: jax.Array,
    shape: PolicyShape,
) -> Cache:
    """Puts T context tokens of B conversations into their slots; no logits are computed."""
    return extend(params, cache, slot_B, tokens_BT, start_B, shape)[0]


@partial(jax.jit, static_argnames=("shape", "steps", "stop_ids", "cut"), donate_argnames="cache")
def decode(
    params: Params,
    cache: Cache,
    state: SlotState,
    shape: PolicyShape,
    steps: int,
    stop_ids: tuple[int, ...],
    cut: bool,
) -> tuple[Cache, SlotState, Burst]:
    """`steps` decode steps of all slots. A slot rests after a stop token or at the end of its
    budget. `cut` compiles in top-k / top-p (a sort of the vocabulary per step)."""
    slot_S = jnp.arange(cache.num_slots)

    def step(carry, _):
        cache, state = carry
        active_S = state.budget_S > 0
        # A resting slot writes nowhere: its conversation may continue in the next burst.
        write_S = jnp.where(active_S, state.position_S, cache.slot_tokens)
        cache, hidden_S1D = extend(params, cache, slot_S, state.token_S[:, None], write_S, shape)
        logits_SV = logits(params, hidden_S1D)[:, 0]
        token_S, logp_mu_S, logp_old_S = sample(logits_SV, state, cut)
        stopped_S = (token_S[:, None] == jnp.array(stop_ids)[None, :]).any(axis=1)
        budget_S = jnp.where(stopped_S, 0, state.budget_S - 1)
        state = state.replace(
            token_S=jnp.where(active_S, token_S, state.token_S),
            position_S=state.position_S + active_S,
            budget_S=jnp.where(active_S, budget_S, 0),
        )
        return (cache, state), Burst(jnp.where(active_S, token_S, -1), logp_mu_S, logp_old_S)

    (cache, state), burst = jax.lax.scan(step, (cache, state), None, length=steps)
    return cache, state, burst


def sample(
    logits_SV: jax.Array, state: SlotState, cut: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One token per slot, its log-probability as sampled, and under the plain softmax.

    The key of a draw is (conversation, position): which slot or batch it ran in does not matter.
    """
    old_SV = jax.nn.log_softmax(logits_SV, axis=-1)
    greedy_S = state.temperature_S == 0
    scale_S = jnp.where(greedy_S, 1.0, state.temperature_S)
    mu_SV = logits_SV / scale_S[:, None]
    if cut:
        mu_SV = jax.vmap(_cut)(mu_SV, state.top_k_S, state.top_p_S)
    mu_SV = jax.nn.log_softmax(mu_SV, axis=-1)
    drawn_S = jax.vmap(_draw)(state.key_S2, state.position_S, mu_SV)
    token_S = jnp.where(greedy_S, logits_SV.argmax(axis=-1), drawn_S).astype(jnp.int32)
    logp_old_S = jnp.take_along_axis(old_SV, token_S[:, None], axis=-1)[:, 0]
    logp_mu_S = jnp.take_along_axis(mu_SV, token_S[:, None], axis=-1)[:, 0]
    return token_S, jnp.where(greedy_S, 0.0, logp_mu_S), logp_old_S


def _draw(key_2: jax.Array, position: jax.Array, logp_V: jax.Array) -> jax.Array:
    key = jax.random.fold_in(jax.random.wrap_key_data(key_2), position)
    return jax.random.categorical(key, logp_V)


def _cut(logits_V: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Keeps the top_k largest, and of these the fewest whose probability reaches top_p."""
    V = logits_V.shape[0]
    order_V = jnp.argsort(-logits_V)
    rank = jnp.where(top_k > 0, top_k, V)
    kept_V = jnp.where(jnp.arange(V) < rank, logits_V[order_V], -jnp.inf)
    prob_V = jax.nn.softmax(kept_V)
    before_V = jnp.cumsum(prob_V) - prob_V  # the first one always stays
    kept_V = jnp.where(before_V < top_p, kept_V, -jnp.inf)
    return jnp.full_like(logits_V, -jnp.inf).at[order_V].set(kept_V)
