"""From episodes to what the trainer's loss reads, by the trainer's own functions.

Each row holds one episode, and each chunk has `Size.tokens` places, of which the world may use
fewer. The critics are tables, which know of a state what the history tells: task, stage, and
whether a wrong word was written. Nothing predicts observations, so ECHO is the loss beside it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ale_jax.algo.advantages import Rewards, credit_chunks
from ale_jax.algo.baselines import scale_token_advantages, token_returns
from ale_jax.algo.values import (
    agreement_masks,
    blend,
    chunk_starts,
    critic_loss,
    explained_variance,
    gae,
    over_chunks,
    turn_gae,
)
from ale_jax.config.algo import AdvantageHypers, AlgoConfig, MismatchHypers
from ale_jax.config.loss import LossHypers
from ale_jax.configs.algorithms import critics, named
from benchmarks.laboratory.world import Played, Regime, Size

CRITIC_RATE = 0.1  # of Adam, on tables of probabilities


@dataclasses.dataclass(frozen=True)
class Arm:
    """An algorithm, and its critics: `count` of them, and the fields of `CriticsHypers` that are
    about credit."""

    algo: AlgoConfig
    count: int = 0
    warmup_steps: int = 0
    mask_share: float = 0.0
    entropy_share: float = 0.0
    lam: float = 1.0


def arm(name: str) -> Arm:
    """The preset of that name. ValueError if there is none."""
    fields = named(name)
    records = {
        part: record(**fields.pop(part))
        for part, record in (
            ("advantage", AdvantageHypers),
            ("loss", LossHypers),
            ("mismatch", MismatchHypers),
        )
        if part in fields
    }
    known = {field.name for field in dataclasses.fields(Arm)}
    about = {name: value for name, value in critics(name).items() if name in known}
    return Arm(AlgoConfig(**fields, **records), **about)


class Rows(NamedTuple):
    """What the trainer's batches say of each episode and token; group_N counts from 0."""

    chunk_NT: jax.Array
    segment_NT: jax.Array
    reward_NT: jax.Array
    group_N: jax.Array
    member_N: jax.Array

    @property
    def written_NT(self) -> jax.Array:
        return self.chunk_NT >= 0

    def steps_NT(self, arm: Arm) -> jax.Array:
        """The tokens that are time steps of values."""
        by_chunk = arm.algo.advantage.steps_are_chunks
        return chunk_starts(self.chunk_NT) if by_chunk else self.written_NT


def lay_out(played: Played, members: int, world: Regime, size: Size) -> Rows:
    """`members` episodes in a row are a group."""
    N, C = played.live_NC.shape
    place_T = jnp.tile(jnp.arange(size.tokens), C)
    live_NT = jnp.repeat(played.live_NC, size.tokens, axis=1) & (place_T < world.tokens)[None]
    chunk_NT = jnp.where(live_NT, jnp.repeat(jnp.arange(C), size.tokens)[None], -1)
    last_NT = chunk_NT == played.live_NC.sum(1)[:, None] - 1
    ends_NT = last_NT & live_NT & (place_T == world.tokens - 1)[None]
    reward_NT = jnp.where(ends_NT, played.outcome_N[:, None], 0.0)
    group_N = jnp.arange(N) // members
    member_N = jnp.arange(N) % members
    return Rows(chunk_NT, live_NT.astype(jnp.int32), reward_NT, group_N, member_N)


def rewards(played: Played, rows: Rows, world: Regime, depth: int) -> Rewards:
    """depth: how many of the last observations make a state, at most."""
    num_chunks_N, seen_NC = played.live_NC.sum(1), _observations(played, world)
    last_NC = jnp.arange(played.live_NC.shape[1])[None] == num_chunks_N[:, None] - 1
    reward_NC = jnp.where(last_NC, played.outcome_N[:, None], 0.0)
    return Rewards(
        reward_NC,
        played.outcome_N,
        num_chunks_N,
        rows.group_N,
        jnp.zeros_like(rows.group_N),
        jnp.ones_like(rows.group_N, bool),
        _first_rows(played, rows, seen_NC),
        _first_rows(played, rows, seen_NC, _done(played, world)),
        played.live_NC * world.tokens,
        _recent_anchors(played, rows, seen_NC, depth) if depth else None,
    )


def _observations(played: Played, world: Regime) -> jax.Array:
    """What is shown before each chunk, from 1 on, [N, C]: the stage, and after a wrong word, if it
    may be tried again, that it was wrong."""
    failed_NC = jnp.pad(~played.right_NC & world.retries, ((0, 0), (1, 0)))[:, :-1]
    return (2 * played.stage_NC + failed_NC + 1).astype(jnp.uint32)


def _done(played: Played, world: Regime) -> jax.Array:
    """The words of the chunk before, as a number from 1 on; 0 before the first, [N, C]."""
    (*_, L), V = played.tokens_NCL.shape, played.logits_MDLV.shape[-1]
    written_NCL = jnp.where((jnp.arange(L) < world.tokens)[None, None], played.tokens_NCL, 0)
    done_NC = (written_NCL * V ** np.arange(L)[None, None]).sum(-1) + 1
    return jnp.pad(done_NC, ((0, 0), (1, 0)))[:, :-1].astype(jnp.uint32)


def _first_rows(played: Played, rows: Rows, *parts_NC: jax.Array) -> jax.Array:
    """The first episode of the group whose history before a chunk, of these parts, is the same,
    [N, C]."""
    (_, C), draw = played.live_NC.shape, np.random.default_rng(0)
    factor_PC = draw.integers(1 << 32, size=(len(parts_NC), C), dtype=np.uint32)
    code_NC = sum(part_NC * factor_C[None] for part_NC, factor_C in zip(parts_NC, factor_PC))
    history_NC = jnp.cumsum(code_NC, axis=1, dtype=jnp.uint32)
    same_NN = rows.group_N[:, None] == rows.group_N[None]
    same_NNC = (history_NC[:, None] == history_NC[None]) & same_NN[..., None]
    return jnp.argmax(same_NNC & played.live_NC[None], axis=1)


def _recent_anchors(played: Played, rows: Rows, seen_NC: jax.Array, depth: int) -> jax.Array:
    """For k = 1..depth, the first chunk of the group with the same last k observations, by its
    index in N x C; its own index if there are fewer. [N, C, depth]"""
    N, C = played.live_NC.shape
    own_U, group_U = jnp.arange(N * C), jnp.repeat(rows.group_N, C)
    same_UU = (group_U[:, None] == group_U[None]) & played.live_NC.reshape(-1)[None]
    anchors = []
    for k in range(depth):
        before_U = jnp.pad(seen_NC, ((0, 0), (k, 0)))[:, :C].reshape(-1)  # 0: there was none
        same_UU &= before_U[:, None] == before_U[None]
        anchors.append(jnp.where(before_U > 0, jnp.argmax(same_UU, axis=1), own_U))
    return jnp.stack(anchors, axis=-1).reshape(N, C, depth)


def advantages(
    played: Played, rows: Rows, value_QNT: jax.Array, arm: Arm, world: Regime, groups: int
) -> tuple[jax.Array, jax.Array]:
    """The advantage of each token, and the factor on its entropy bonus, [N, T]."""
    algo, (N, T) = arm.algo, rows.chunk_NT.shape
    ones_NT = jnp.ones((N, T))
    if not algo.advantage.of_tokens:
        known = rewards(played, rows, world, algo.advantage.anchor_depth)
        found = credit_chunks(known, groups, algo.gamma, algo.advantage)
        each = T // found.advantage_NC.shape[1]
        return jnp.repeat(found.advantage_NC, each, axis=1), ones_NT
    along = rows.chunk_NT, rows.segment_NT, algo.gamma
    if arm.count:
        plain_NT = _by_critics(value_QNT.mean(0), rows, arm)
    else:
        plain_NT = token_returns(rows.reward_NT, *along)
    step_NT = rows.steps_NT(arm)
    group_NT = jnp.broadcast_to(rows.group_N[:, None], (N, T))
    tag_G = jnp.zeros(groups, jnp.int32)
    scaled_NT = scale_token_advantages(plain_NT, step_NT, group_NT, tag_G, algo.advantage)
    if algo.advantage.steps_are_chunks:
        scaled_NT = over_chunks(scaled_NT, rows.chunk_NT)
    if not arm.mask_share and not arm.entropy_share:
        return scaled_NT, ones_NT
    teaches_NT, explores_NT = _agreement(value_QNT.std(0), rows.written_NT, arm)
    return jnp.where(teaches_NT, scaled_NT, 0.0), explores_NT.astype(jnp.float32)


def _by_critics(value_NT: jax.Array, rows: Rows, arm: Arm) -> jax.Array:
    """GAE on the critics' mean value."""
    advantage = arm.algo.advantage
    along = rows.reward_NT, rows.chunk_NT, rows.segment_NT, arm.algo.gamma
    estimate = turn_gae if advantage.steps_are_chunks else gae
    trusting_NT, _ = estimate(value_NT, *along, arm.lam)
    if not advantage.blends:
        return trusting_NT
    cautious_NT, _ = estimate(value_NT, *along, 1.0)
    return_NT, _ = estimate(jnp.zeros_like(value_NT), *along, 1.0)
    chunk_NT = rows.chunk_NT
    last_NT = chunk_starts(chunk_NT) & (chunk_NT == chunk_NT.max(1, keepdims=True))
    explained = explained_variance(value_NT, return_NT, last_NT)
    return blend(trusting_NT, cautious_NT, explained)


def _agreement(spread_NT: jax.Array, written_NT: jax.Array, arm: Arm) -> tuple[jax.Array, ...]:
    """The trainer's masks, which are made on the host, of the tokens that were written."""

    def on_host(spread_NT, written_NT):
        spread_NT, written_NT = np.asarray(spread_NT), np.asarray(written_NT)
        masks = np.ones((2, *spread_NT.shape), bool)
        shares = arm.mask_share, arm.entropy_share
        masks[:, written_NT] = agreement_masks(spread_NT[written_NT], *shares)
        return tuple(masks)

    found = (jax.ShapeDtypeStruct(spread_NT.shape, jnp.bool_),) * 2
    return jax.pure_callback(on_host, found, spread_NT, written_NT, vmap_method="sequential")


class Critics(NamedTuple):
    """value_QMD2: of each state, before and after a wrong word. moments: of Adam."""

    value_QMD2: jax.Array
    moments: Any


_critic_optimizer = optax.adam(CRITIC_RATE)


def no_knowledge(arm: Arm, size: Size) -> Critics:
    value_QMD2 = jnp.zeros((arm.count, size.tasks, size.stages, 2))
    return Critics(value_QMD2, _critic_optimizer.init(value_QMD2))


def token_values(value_QMD2: jax.Array, played: Played) -> jax.Array:
    """The value before each token, [Q, N, T]; all tokens of a chunk have the same."""
    lost_NC = played.lost_NC.astype(jnp.int32)
    value_QNC = value_QMD2[:, played.task_N[:, None], played.stage_NC, lost_NC]
    return jnp.repeat(value_QNC, played.tokens_NCL.shape[2], axis=2)


def learn_values(critics: Critics, played: Played, rows: Rows, arm: Arm) -> Critics:
    """One update of each critic towards the returns of its own members of each group."""
    estimate = turn_gae if arm.algo.advantage.steps_are_chunks else gae
    along = rows.reward_NT, rows.chunk_NT, rows.segment_NT, arm.algo.gamma, 1.0
    return_NT, _ = estimate(jnp.zeros_like(rows.reward_NT), *along)
    step_NT = rows.steps_NT(arm)

    def loss(value_QMD2):
        value_QNT = token_values(value_QMD2, played)
        own = [(rows.member_N % arm.count == q)[:, None] & step_NT for q in range(arm.count)]
        return sum(
            critic_loss(value_NT, return_NT, own_NT, step_NT.sum())[0]
            for value_NT, own_NT in zip(value_QNT, own, strict=True)
        )

    gradient = jax.grad(loss)(critics.value_QMD2)
    change, moments = _critic_optimizer.update(gradient, critics.moments)
    return Critics(critics.value_QMD2 + change, moments)
