"""Draws the next tokens of all slots: in decode steps of one token each, and by passes that verify
several drafted tokens at once (speculative decoding, Leviathan et al. 2022)."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.compute import in_step
from ale_jax.model.drafts import Said, look_up, note, pays
from ale_jax.model.extend import extend
from ale_jax.model.guides import MAX_TOP_LOGPROBS, Guides, num_words
from ale_jax.model.memory import Memory
from ale_jax.model.params import Params
from ale_jax.model.policy import logits
from ale_jax.model.sampler import SlotState, sample
from ale_jax.model.served_adapters import for_rows


@struct.dataclass
class DecodeOutput:
    """What n steps sampled, [n,S]: the token (-1 where the slot was idle, or no draft reached),
    its log-probability under the sampled distribution (mu) and under the model's plain softmax.
    start: position of the token that each slot started from, [S]. top, left: see `SamplerOutput`.

    Experts, int16, if they are recorded: those of the token that each step started from (expert),
    and of each token of the chunks (prefill_expert). They are meaningless for idle slots and
    padding.

    count_3: passes through the policy, drafted tokens that these verified, and those of them that
    were right. acceptance: as in `Said`, at the end; None without drafts.
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
    count_3: jax.Array | None = None
    acceptance_S: jax.Array | None = None


class DecodeArguments(NamedTuple):
    """The static arguments of the same names."""

    shape: PolicyShape
    steps: int
    drafted: int
    stop_ids: tuple[int, ...]
    platform: str
    record_experts: bool
    record_left: bool


class _Progress(NamedTuple):
    """What the passes of a dispatch hand on. i: passes so far. said, draft_Sk: what drafts are made
    of, and those that the next pass may verify; None if none are made."""

    i: jax.Array
    memory: list[Memory]
    state: SlotState
    output: DecodeOutput
    said: Said | None
    draft_Sk: jax.Array | None


def decode(
    params: Params,
    memory: list[Memory],
    state: SlotState,
    guides: Guides | None,
    said: Said | None,
    static: DecodeArguments,
) -> tuple[list[Memory], SlotState, DecodeOutput]:
    """Runs passes of all slots until they are idle, `steps` at most: steps of one token each, and
    where that pays, passes that verify drafts. said: what drafts are made of; None if there are
    none. The output has `1 + drafted` steps for each pass."""

    def is_decoding(now: _Progress) -> jax.Array:
        return (now.i < static.steps) & (now.state.budget_S > 0).any()

    def verifies(now: _Progress) -> jax.Array:
        assert now.said is not None and now.draft_Sk is not None
        return pays(now.said, now.draft_Sk, now.state.budget_S > 0, static.platform)

    step = partial(_step, params, guides=guides, static=static)
    verify = partial(_verify, params, guides=guides, static=static)
    n = static.steps * (1 + static.drafted)
    output = _empty_output(n, state, guides is not None, static)
    now = _Progress(jnp.int32(0), memory, state, output, said, None)
    if said is None:
        now = jax.lax.while_loop(is_decoding, step, now)
        return now.memory, now.state, _counted(now)

    # A loop for each kind of pass, as a conditional would copy the cache.
    def passes(now: _Progress) -> _Progress:
        now = jax.lax.while_loop(lambda now: is_decoding(now) & verifies(now), verify, now)
        return jax.lax.while_loop(lambda now: is_decoding(now) & ~verifies(now), step, now)

    now = now._replace(draft_Sk=look_up(said, state, static.drafted))
    now = jax.lax.while_loop(is_decoding, passes, now)
    assert now.said is not None
    acceptance_S = jnp.asarray(now.said.acceptance_S)
    output = dataclasses.replace(_counted(now), acceptance_S=acceptance_S)
    return now.memory, now.state, output


def _counted(now: _Progress) -> DecodeOutput:
    assert now.output.count_3 is not None
    return dataclasses.replace(now.output, count_3=now.output.count_3.at[0].set(now.i))


def _step(
    params: Params, now: _Progress, guides: Guides | None, static: DecodeArguments
) -> _Progress:
    """Draws one token of each slot."""
    weights, i = in_step(for_rows(params), now.i)
    state, active_S = now.state, now.state.budget_S > 0
    # An idle slot stores nothing: its conversation may continue in the next dispatch.
    memory, hidden_S1D, expert_S1LK = extend(
        weights, now.memory, state.token_S[:, None], state.position_S, active_S, static.shape
    )
    logits_SV = logits(weights, hidden_S1D, static.shape.logit_cap)[:, 0]
    state, new = _draw(logits_SV, state, active_S, guides, i, static)
    new = _with_experts(new, expert_S1LK, 0, static)
    output = _put(now.output, i * (1 + static.drafted), new)
    said, draft_Sk = now.said, now.draft_Sk
    if said is not None and draft_Sk is not None:
        said = note(said, state, draft_Sk[:, 0], active_S)
        draft_Sk = look_up(said, state, static.drafted)
    return _Progress(i + 1, memory, state, output, said, draft_Sk)


def _verify(
    params: Params, now: _Progress, guides: Guides | None, static: DecodeArguments
) -> _Progress:
    """Runs the drafts of slots through the policy in one pass, and draws the token of each position
    with its own key, as a step would, until one is another than the draft's. That one is right,
    too: all tokens but the drawn ones before it were given.

    So tokens are those that would be drawn one by one, and their log-probabilities the policy's.
    What the pass has stored behind them is overwritten before it is read.
    """
    assert now.said is not None and now.draft_Sk is not None
    weights, i = in_step(for_rows(params), now.i)
    draft_Sk, state, active_S = now.draft_Sk, now.state, now.state.budget_S > 0
    is_drafted_Sk = (draft_Sk >= 0) & active_S[:, None]
    token_ST = jnp.concatenate([state.token_S[:, None], jnp.maximum(draft_Sk, 0)], axis=1)
    expected_ST = jnp.pad(draft_Sk, ((0, 0), (0, 1)), constant_values=-1)
    count_S = jnp.where(active_S, 1 + is_drafted_Sk.sum(axis=1), 0)
    memory, hidden_STD, expert_STLK = extend(
        weights, now.memory, token_ST, state.position_S, count_S, static.shape
    )
    logits_STV = logits(weights, hidden_STD, static.shape.logit_cap)

    def compare(carry):
        j, active_S, state, output, said = carry
        state, new = _draw(logits_STV[:, j], state, active_S, guides, i, static)
        said = note(said, state, expected_ST[:, j], active_S)
        new = _with_experts(new, expert_STLK, j, static)
        is_right_S = active_S & (new.token_nS == expected_ST[:, j])
        output = _put(output, i * (1 + static.drafted) + j, new)
        output = dataclasses.replace(output, count_3=output.count_3.at[2].add(is_right_S.sum()))
        return j + 1, is_right_S & (state.budget_S > 0), state, output, said

    output = now.output
    assert output.count_3 is not None
    output = dataclasses.replace(output, count_3=output.count_3.at[1].add(is_drafted_Sk.sum()))
    carry = jnp.int32(0), active_S, state, output, now.said
    *_, state, output, said = jax.lax.while_loop(lambda carry: carry[1].any(), compare, carry)
    draft_Sk = look_up(said, state, static.drafted)
    return _Progress(i + 1, memory, state, output, said, draft_Sk)


def _empty_output(
    n: int, state: SlotState, wants_top: bool, static: DecodeArguments
) -> DecodeOutput:
    S, most = len(state.token_S), min(MAX_TOP_LOGPROBS, static.shape.vocab_size)
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
        expert_nSLK=expert_buffer(n, S, shape=static.shape) if static.record_experts else None,
        count_3=jnp.zeros((3,), jnp.int32),
    )


def _draw(
    logits_SV: jax.Array,
    state: SlotState,
    active_S: jax.Array,
    guides: Guides | None,
    step: jax.Array,
    static: DecodeArguments,
) -> tuple[SlotState, DecodeOutput]:
    """Draws the next token of the active slots. Returns the state behind them, and what was drawn
    in one step, [S]."""
    sampled = sample(logits_SV, state, guides, step, static.record_left)
    drawn = DecodeOutput(
        jnp.where(active_S, sampled.token_S, -1),
        sampled.logp_mu_S,
        sampled.logp_plain_S,
        sampled.top_id_Sk,
        sampled.top_logp_Sk,
        sampled.left_Sw,
    )
    return _advance(state, active_S, sampled.token_S, static.stop_ids), drawn


def _advance(
    state: SlotState, active_S: jax.Array, token_S: jax.Array, stop_ids: tuple[int, ...]
) -> SlotState:
    stopped_S = (token_S[:, None] == jnp.array(stop_ids)[None, :]).any(axis=1)
    budget_S = jnp.where(stopped_S, 0, state.budget_S - 1)
    return dataclasses.replace(
        state,
        token_S=jnp.where(active_S, token_S, state.token_S),
        position_S=state.position_S + active_S,
        budget_S=jnp.where(active_S, budget_S, state.budget_S),
    )


def _with_experts(
    new: DecodeOutput, expert_STLK: jax.Array | None, at: jax.Array | int, static: DecodeArguments
) -> DecodeOutput:
    if not static.record_experts:
        return new
    assert expert_STLK is not None, "a dense policy has nothing to record"
    return dataclasses.replace(new, expert_nSLK=expert_STLK[:, at])


def _put(output: DecodeOutput, step: jax.Array, new: DecodeOutput) -> DecodeOutput:
    counts, steps = output.count_3, dataclasses.replace(output, count_3=None)
    steps = jax.tree.map(lambda all_nS, new_S: all_nS.at[step].set(new_S), steps, new)
    return dataclasses.replace(steps, count_3=counts)


def expert_buffer(*tokens: int, shape: PolicyShape) -> jax.Array:
    """Returns zeros for the experts of these tokens."""
    return jnp.zeros((*tokens, shape.num_moe_layers, shape.experts_per_token), jnp.int16)
