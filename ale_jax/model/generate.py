"""The sampling program: one dispatch prefills chunks of context, then runs decode steps.

The engine (engine/engine.py) owns the schedule; this module only has functions of arrays.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.compute import EXACT, in_step
from ale_jax.model.decode import DecodeArguments, DecodeOutput, decode, expert_buffer
from ale_jax.model.drafts import Said
from ale_jax.model.extend import extend
from ale_jax.model.guides import Guides
from ale_jax.model.memory import Cache, Conversations, in_decode, in_prefill, kept
from ale_jax.model.params import Params
from ale_jax.model.sampler import SlotState
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


@partial(
    jax.jit,
    static_argnames=(
        *("shape", "sizes", "steps", "drafted", "stop_ids", "platform"),
        *("record_experts", "record_left"),
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
    said: Said | None = None,
    *,
    shape: PolicyShape,
    sizes: tuple[int, ...],
    steps: int,
    drafted: int = 0,
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

    said: what drafts of `drafted` tokens are made of, if no slot continues; None: none are made. A
    step may then be a pass that verifies drafts, which depends on all slots, and differs in the
    last bits.
    """
    state = _continue(state, previous)
    cache, expert_QRTLK = _prefill(
        params, cache, page_SW, prefill, shape, sizes, platform, record_experts
    )
    static = DecodeArguments(shape, steps, drafted, stop_ids, platform, record_experts, record_left)
    held = Conversations(page_SW, state.position_S)
    memory = [
        in_decode(kind, each, held, steps * (1 + drafted), platform)
        for kind, each in zip(shape.layers, cache, strict=True)
    ]
    memory, end, output = decode(params, memory, state, guides, said, static)
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

    expert_QRTLK = expert_buffer(*prefill.tokens_QRT.shape, shape=shape) if record_experts else None
    _, cache, expert_QRTLK = jax.lax.while_loop(is_left, prefill_runs, (0, cache, expert_QRTLK))
    return cache, expert_QRTLK
