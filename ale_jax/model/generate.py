"""The sampling program: one dispatch reads chunks of context, then runs a burst of decode steps.

The engine (engine/engine.py) owns the schedule; this module only has functions of arrays.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from ale_jax.model.cache import Cache
from ale_jax.model.compute import EXACT, in_step
from ale_jax.model.extend import InBurst, InPages, LayerMemory, extend
from ale_jax.model.guides import MOST_SHOWN, Guides
from ale_jax.model.paged_attention import has_kernel
from ale_jax.model.params import Params
from ale_jax.model.policy import logits
from ale_jax.model.sampler import SlotState, sample
from ale_jax.model.shape import PolicyShape


@struct.dataclass
class Chunks:
    """Context to be read: `num_batches` batches of R chunks, in order, at most Q.

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
class Burst:
    """What n decode steps wrote, [n,S]: the token (-1 where the slot was idle), and its
    log-probability under the sampled distribution (mu) and under the model's plain softmax (old).
    start: position of the token that each slot started from, [S]. top: see `Drawn`.

    Experts, int16, if they are recorded: those of the token that each step started from (expert),
    and of each token of the chunks (read). They are meaningless for idle slots and padding.
    """

    token_nS: jax.Array
    logp_mu_nS: jax.Array
    logp_old_nS: jax.Array
    top_id_nSk: jax.Array | None = None
    top_logp_nSk: jax.Array | None = None
    start_S: jax.Array | None = None
    expert_nSLK: jax.Array | None = None
    read_QRTLK: jax.Array | None = None


@partial(
    jax.jit,
    static_argnames=("shape", "sizes", "steps", "stop_ids", "platform", "record_experts"),
    donate_argnames="cache",
    compiler_options=EXACT,
)
def read_and_write(
    params: Params,
    cache: Cache,
    left: SlotState,
    page_SW: jax.Array,
    chunks: Chunks,
    state: SlotState,
    guides: Guides | None = None,
    *,
    shape: PolicyShape,
    sizes: tuple[int, ...],
    steps: int,
    stop_ids: tuple[int, ...],
    platform: str,
    record_experts: bool = False,
) -> tuple[Cache, SlotState, Burst]:
    """Reads `chunks`, then runs up to `steps` decode steps of all slots.

    left: the state that the dispatch before has returned, with which some slots go on. page_SW: the
    pages of each slot's conversation. guides: of these steps. A slot is idle after a stop token or
    at the end of its budget; the burst ends when all slots are. Every chunk and every step has the
    same shape, whichever conversations take part, so that a conversation's numbers do not depend on
    the others.
    """
    state = _go_on(state, left)
    cache, read = _read(params, cache, page_SW, chunks, shape, sizes, platform, record_experts)
    how = _Writing(shape, steps, stop_ids, record_experts)
    write = partial(_write, params, state=state, guides=guides, how=how)
    if has_kernel(platform, cache[0]):
        memory = [InPages(pages, page_SW, platform) for pages in cache]
        memory, end, burst = write(memory)
        cache = [each.pages for each in memory]
        return cache, _replicated(end), burst.replace(start_S=state.position_S, read_QRTLK=read)
    memory = [InBurst.begin(pages, page_SW, state.position_S, steps) for pages in cache]
    memory, end, burst = write(memory)
    cache = [
        each.bring(pages, page_SW, end.position_S)
        for pages, each in zip(cache, memory, strict=True)
    ]
    return cache, _replicated(end), burst.replace(start_S=state.position_S, read_QRTLK=read)


def _go_on(state: SlotState, left: SlotState) -> SlotState:
    def pick(ours_S: jax.Array, left_S: jax.Array) -> jax.Array:
        return jnp.where(state.goes_on_S, left_S, ours_S)

    return state.replace(
        token_S=pick(state.token_S, left.token_S),
        position_S=pick(state.position_S, left.position_S),
        budget_S=pick(state.budget_S, left.budget_S),
    )


def _replicated(state: SlotState) -> SlotState:
    """The next dispatch expects it where it was put for the first one."""
    if jax.sharding.get_abstract_mesh().empty:
        return state
    return jax.lax.with_sharding_constraint(state, PartitionSpec())


def _read(
    params: Params,
    cache: Cache,
    page_SW: jax.Array,
    chunks: Chunks,
    shape: PolicyShape,
    sizes: tuple[int, ...],
    platform: str,
    record_experts: bool,
) -> tuple[Cache, jax.Array | None]:
    """Reads the batches in order, by runs of equal `size_Q`: within an outer loop, each size has a
    loop of its own. For the sizes 0, 0, 1, 0, the first pass of the outer loop reads two batches at
    size 0, then one at size 1, and the second pass reads the last batch at size 0."""

    def is_left(carry) -> jax.Array:
        batch, _, _ = carry
        return batch < chunks.num_batches

    def read_one(size: int, carry):
        batch, cache, expert_QRTLK = carry
        weights, now = in_step(params, batch)
        memory = [InPages(pages, page_SW[chunks.slot_QR[now]], platform) for pages in cache]
        tokens_RT = chunks.tokens_QRT[now, :, :size]
        start_R, count_R = chunks.start_QR[now], chunks.count_QR[now]
        memory, _, expert_RTLK = extend(weights, memory, tokens_RT, start_R, count_R, shape)
        if expert_QRTLK is not None:
            expert_QRTLK = expert_QRTLK.at[now, :, :size].set(expert_RTLK)
        return batch + 1, [each.pages for each in memory], expert_QRTLK

    def read_runs(carry):
        """For each size in turn, reads the batches up to the next one of another size."""
        # A conditional would be simpler, but for each batch the compiler would copy everything that
        # it is given, including the whole cache.
        for number, size in enumerate(sizes):
            carry = jax.lax.while_loop(
                lambda carry, n=number: is_left(carry) & (chunks.size_Q[carry[0]] == n),
                partial(read_one, size),
                carry,
            )
        return carry

    expert_QRTLK = _room(*chunks.tokens_QRT.shape, shape=shape) if record_experts else None
    _, cache, expert_QRTLK = jax.lax.while_loop(is_left, read_runs, (0, cache, expert_QRTLK))
    return cache, expert_QRTLK


def _room(*tokens: int, shape: PolicyShape) -> jax.Array:
    """Zeros for the experts of these tokens."""
    return jnp.zeros((*tokens, shape.num_moe_layers, shape.experts_per_token), jnp.int16)


class _Writing(NamedTuple):
    """The static arguments of the same names."""

    shape: PolicyShape
    steps: int
    stop_ids: tuple[int, ...]
    record_experts: bool


def _write(
    params: Params,
    memory: list[LayerMemory],
    state: SlotState,
    guides: Guides | None,
    how: _Writing,
) -> tuple[list[LayerMemory], SlotState, Burst]:
    def is_writing(carry) -> jax.Array:
        i, _, state, _ = carry
        return (i < how.steps) & (state.budget_S > 0).any()

    def step(carry):
        i, memory, state, burst = carry
        weights, i = in_step(params, i)
        active_S = state.budget_S > 0
        # An idle slot stores nothing: its conversation may continue in the next burst.
        memory, hidden_S1D, expert_S1LK = extend(
            weights, memory, state.token_S[:, None], state.position_S, active_S, how.shape
        )
        drawn = sample(logits(weights, hidden_S1D)[:, 0], state, guides, i)
        written = Burst(
            jnp.where(active_S, drawn.token_S, -1),
            drawn.logp_mu_S,
            drawn.logp_old_S,
            drawn.top_id_Sk,
            drawn.top_logp_Sk,
            expert_nSLK=expert_S1LK[:, 0] if how.record_experts else None,
        )
        burst = jax.tree.map(lambda all_nS, new_S: all_nS.at[i].set(new_S), burst, written)
        return i + 1, memory, _after(state, drawn.token_S, how.stop_ids), burst

    burst = _empty_burst(state.token_S.shape[0], guides is not None, how)
    _, memory, state, burst = jax.lax.while_loop(is_writing, step, (0, memory, state, burst))
    return memory, state, burst


def _empty_burst(S: int, shows: bool, how: _Writing) -> Burst:
    n, most = how.steps, min(MOST_SHOWN, how.shape.vocab_size)
    nothing_nS = jnp.zeros((n, S), jnp.float32)
    return Burst(
        jnp.full((n, S), -1, jnp.int32),
        nothing_nS,
        nothing_nS,
        jnp.zeros((n, S, most), jnp.int32) if shows else None,
        jnp.zeros((n, S, most), jnp.float32) if shows else None,
        expert_nSLK=_room(n, S, shape=how.shape) if how.record_experts else None,
    )


def _after(state: SlotState, token_S: jax.Array, stop_ids: tuple[int, ...]) -> SlotState:
    active_S = state.budget_S > 0
    stopped_S = (token_S[:, None] == jnp.array(stop_ids)[None, :]).any(axis=1)
    budget_S = jnp.where(stopped_S, 0, state.budget_S - 1)
    return state.replace(
        token_S=jnp.where(active_S, token_S, state.token_S),
        position_S=state.position_S + active_S,
        budget_S=jnp.where(active_S, budget_S, 0),
    )
