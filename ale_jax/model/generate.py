"""The sampling program: one dispatch prefills chunks of context, then runs decode steps.

The engine (engine/engine.py) owns the schedule; this module only has functions of arrays.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.compute import EXACT, in_step
from ale_jax.model.extend import extend
from ale_jax.model.guides import MAX_TOP_LOGPROBS, Guides, num_words
from ale_jax.model.memory import Cache, Conversations, Memory, in_decode, in_prefill, kept
from ale_jax.model.params import Params
from ale_jax.model.policy import logits
from ale_jax.model.sampler import SlotState, sample
from ale_jax.model.served_adapters import for_rows


@struct.dataclass
class PrefillBatches:
    """Context to be prefilled: `num_batches` batches of R chunks, in order, at most Q.

    A batch is computed at the `size_Q`-th of the sizes that the program was compiled for. In each
    chunk, `count_QR` tokens are real; they start at position `start_QR` of the conversation in slot
    `slot_QR`.
    """

    num_batches: jax.Array
    size_Q: jax.Array
    slot_QR: jax.Array
    tokens_QRT: jax.Array
    start_QR: jax.Array
    count_QR: jax.Array


@struct.dataclass
class DecodeOutput:
    """What n decode steps sampled, [n,S]: the token (-1 where the slot was idle), and its
    log-probability under the sampled distribution (mu) and under the model's plain softmax.
    start: position of the token that each slot started from, [S]. top, left: see `SamplerOutput`.

    Experts, int16, if they are recorded: those of the token that each step started from (expert),
    and of each token of the chunks (prefill_expert). They are meaningless for idle slots and
    padding.
    """

    token_nS: jax.Array
    logp_mu_nS: jax.Array
    logp_plain_nS: jax.Array
    top_id_nSk: jax.Array | None = None
    top_logp_nSk: jax.Array | None = None
    left_nSw: jax.Array | None = None
    start_S: jax.Array | None = None
    expert_nSLK: jax.Array | None = None
    prefill_expert_QRTLK: jax.Array | None = None


@partial(
    jax.jit,
    static_argnames=(
        *("shape", "sizes", "steps", "stop_ids", "platform", "record_experts", "record_left"),
    ),
    donate_argnames="cache",
    compiler_options=EXACT,
)
def prefill_and_decode(
    params: Params,
    cache: Cache,
    previous: SlotState,
    page_SW: jax.Array,
    prefill: PrefillBatches,
    state: SlotState,
    guides: Guides | None = None,
    *,
    shape: PolicyShape,
    sizes: tuple[int, ...],
    steps: int,
    stop_ids: tuple[int, ...],
    platform: str,
    record_experts: bool = False,
    record_left: bool = False,
) -> tuple[Cache, SlotState, DecodeOutput]:
    """Prefills the chunks, then runs up to `steps` decode steps of all slots.

    previous: the state that the dispatch before has returned, from which some slots continue.
    page_SW: the pages of each slot's conversation. guides: of these steps. A slot is idle after a
    stop token or at the end of its budget; the steps end when all slots are. Every chunk and every
    step has the same shape, whichever conversations take part, so that a conversation's numbers do
    not depend on the others.
    """
    state = _continue(state, previous)
    cache, expert_QRTLK = _prefill(
        params, cache, page_SW, prefill, shape, sizes, platform, record_experts
    )
    static = _DecodeArguments(shape, steps, stop_ids, record_experts, record_left)

    held = Conversations(page_SW, state.position_S)
    memory = [
        in_decode(kind, each, held, steps, platform)
        for kind, each in zip(shape.layers, cache, strict=True)
    ]
    memory, end, output = _decode(params, memory, state, guides, static)
    held = Conversations(page_SW, end.position_S)
    cache = [kept(now, before, held) for now, before in zip(memory, cache, strict=True)]
    output = dataclasses.replace(
        output, start_S=state.position_S, prefill_expert_QRTLK=expert_QRTLK
    )
    return cache, _replicated(end), output


def _continue(state: SlotState, previous: SlotState) -> SlotState:
    def pick(new_S: jax.Array, previous_S: jax.Array) -> jax.Array:
        return jnp.where(state.continues_S, previous_S, new_S)

    return dataclasses.replace(
        state,
        token_S=pick(state.token_S, previous.token_S),
        position_S=pick(state.position_S, previous.position_S),
        budget_S=pick(state.budget_S, previous.budget_S),
    )


def _replicated(state: SlotState) -> SlotState:
    """The next dispatch expects it where it was put for the first one."""
    if jax.sharding.get_abstract_mesh().empty:
        return state
    return jax.lax.with_sharding_constraint(state, PartitionSpec())


def _prefill(
    params: Params,
    cache: Cache,
    page_SW: jax.Array,
    prefill: PrefillBatches,
    shape: PolicyShape,
    sizes: tuple[int, ...],
    platform: str,
    record_experts: bool,
) -> tuple[Cache, jax.Array | None]:
    """Prefills the batches in order, by runs of equal `size_Q`: within an outer loop, each size has
    a loop of its own. For the sizes 0, 0, 1, 0, the first pass of the outer loop takes two batches
    at size 0, then one at size 1, and the second pass takes the last batch at size 0."""

    def is_left(carry) -> jax.Array:
        batch, _, _ = carry
        return batch < prefill.num_batches

    def prefill_one(size: int, carry):
        batch, cache, expert_QRTLK = carry
        weights, now = in_step(params, batch)
        tokens_RT = prefill.tokens_QRT[now, :, :size]
        start_R, count_R, slot_R = (
            each[now] for each in (prefill.start_QR, prefill.count_QR, prefill.slot_QR)
        )
        weights = for_rows(weights, slot_R)
        held = Conversations(page_SW[slot_R], start_R, slot_R)
        layers = list(zip(shape.layers, cache, strict=True))
        memory = [in_prefill(kind, each, held, platform) for kind, each in layers]
        memory, _, expert_RTLK = extend(weights, memory, tokens_RT, start_R, count_R, shape)
        if expert_QRTLK is not None:
            expert_QRTLK = expert_QRTLK.at[now, :, :size].set(expert_RTLK)
        cache = [kept(now, before, held) for now, before in zip(memory, cache, strict=True)]
        return batch + 1, cache, expert_QRTLK

    def prefill_runs(carry):
        """For each size in turn, takes the batches up to the next one of another size."""
        # A conditional would be simpler, but for each batch the compiler would copy everything that
        # it is given, including the whole cache.
        for number, size in enumerate(sizes):
            carry = jax.lax.while_loop(
                lambda carry, n=number: is_left(carry) & (prefill.size_Q[carry[0]] == n),
                partial(prefill_one, size),
                carry,
            )
        return carry

    expert_QRTLK = (
        _expert_buffer(*prefill.tokens_QRT.shape, shape=shape) if record_experts else None
    )
    _, cache, expert_QRTLK = jax.lax.while_loop(is_left, prefill_runs, (0, cache, expert_QRTLK))
    return cache, expert_QRTLK


def _expert_buffer(*tokens: int, shape: PolicyShape) -> jax.Array:
    """Zeros for the experts of these tokens."""
    return jnp.zeros((*tokens, shape.num_moe_layers, shape.experts_per_token), jnp.int16)


class _DecodeArguments(NamedTuple):
    """The static arguments of the same names."""

    shape: PolicyShape
    steps: int
    stop_ids: tuple[int, ...]
    record_experts: bool
    record_left: bool


def _decode(
    params: Params,
    memory: list[Memory],
    state: SlotState,
    guides: Guides | None,
    static: _DecodeArguments,
) -> tuple[list[Memory], SlotState, DecodeOutput]:
    def is_decoding(carry) -> jax.Array:
        i, _, state, _ = carry
        return (i < static.steps) & (state.budget_S > 0).any()

    def step(carry):
        i, memory, state, output = carry
        weights, i = in_step(for_rows(params), i)
        active_S = state.budget_S > 0
        # An idle slot stores nothing: its conversation may continue in the next dispatch.
        memory, hidden_S1D, expert_S1LK = extend(
            weights, memory, state.token_S[:, None], state.position_S, active_S, static.shape
        )
        logits_SV = logits(weights, hidden_S1D, static.shape.logit_cap)[:, 0]
        sampled = sample(logits_SV, state, guides, i, static.record_left)
        new = DecodeOutput(
            jnp.where(active_S, sampled.token_S, -1),
            sampled.logp_mu_S,
            sampled.logp_plain_S,
            sampled.top_id_Sk,
            sampled.top_logp_Sk,
            sampled.left_Sw,
            expert_nSLK=expert_S1LK[:, 0] if static.record_experts else None,
        )
        output = jax.tree.map(lambda all_nS, new_S: all_nS.at[i].set(new_S), output, new)
        return i + 1, memory, _advance(state, sampled.token_S, static.stop_ids), output

    output = _empty_output(state.token_S.shape[0], guides is not None, static)
    _, memory, state, output = jax.lax.while_loop(is_decoding, step, (0, memory, state, output))
    return memory, state, output


def _empty_output(S: int, wants_top: bool, static: _DecodeArguments) -> DecodeOutput:
    n, most = static.steps, min(MAX_TOP_LOGPROBS, static.shape.vocab_size)
    nothing_nS = jnp.zeros((n, S), jnp.float32)
    return DecodeOutput(
        jnp.full((n, S), -1, jnp.int32),
        nothing_nS,
        nothing_nS,
        jnp.zeros((n, S, most), jnp.int32) if wants_top else None,
        jnp.zeros((n, S, most), jnp.float32) if wants_top else None,
        jnp.zeros((n, S, num_words(static.shape.vocab_size)), jnp.int32)
        if static.record_left
        else None,
        expert_nSLK=_expert_buffer(n, S, shape=static.shape) if static.record_experts else None,
    )


def _advance(state: SlotState, token_S: jax.Array, stop_ids: tuple[int, ...]) -> SlotState:
    active_S = state.budget_S > 0
    stopped_S = (token_S[:, None] == jnp.array(stop_ids)[None, :]).any(axis=1)
    budget_S = jnp.where(stopped_S, 0, state.budget_S - 1)
    return dataclasses.replace(
        state,
        token_S=jnp.where(active_S, token_S, state.token_S),
        position_S=state.position_S + active_S,
        budget_S=jnp.where(active_S, budget_S, 0),
    )
