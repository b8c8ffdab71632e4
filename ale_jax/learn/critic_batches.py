"""What critics read and what they learn: packed rows, returns, and each critic's share of them.

by_chunk: the time steps are chunks (`turn_gae`), whose values and returns are those at their first
tokens; else tokens (`gae`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from ale_jax.algo.values import chunk_starts, critic_of, gae, over_chunks, turn_gae
from ale_jax.data.selection import select_segments
from ale_jax.records import Batch


@dataclasses.dataclass(frozen=True)
class ValueBatch:
    """A critic's input, in the form of a `Batch`, with its targets: the return of each token that
    the critic learns from (own_BT)."""

    tokens_BT: np.ndarray
    position_BT: np.ndarray
    segment_BT: np.ndarray
    return_BT: np.ndarray
    own_BT: np.ndarray


def time_steps(batch: Batch, by_chunk: bool) -> np.ndarray:
    """The tokens before which a value is asked for, bool [B, T]."""
    return np.asarray(_chunk_starts(batch.chunk_BT)) if by_chunk else batch.chunk_BT >= 0


def of_time_steps(x_BT: np.ndarray, batch: Batch, by_chunk: bool) -> np.ndarray:
    """The x of each policy token's time step, [B, T]."""
    return np.asarray(_over_chunks(x_BT, batch.chunk_BT)) if by_chunk else x_BT


def value_batches(
    batches: Sequence[Batch],
    returns: Sequence[np.ndarray],
    number: int,
    count: int,
    by_chunk: bool = False,
) -> list[ValueBatch]:
    """The trajectories from which critic `number` of `count` learns, in as few batches as they
    fill."""
    own = [(critic_of(b.member_BT, count) == number) & time_steps(b, by_chunk) for b in batches]
    chosen = select_segments([b.segment_BT for b in batches], own)
    if not chosen.moves:
        return []
    columns = (
        chosen.take([b.tokens_BT for b in batches]),
        chosen.take([b.position_BT for b in batches]),
        chosen.segments(),
        chosen.take(returns),
        chosen.take(own),
    )
    return [ValueBatch(*each) for each in zip(*columns, strict=True)]


def returns(batches: Sequence[Batch], gamma: float, by_chunk: bool = False) -> list[np.ndarray]:
    """The discounted sum of rewards from each policy token's time step on, float32 [B, T] for each
    batch."""
    return [gae_advantage(b, np.zeros_like(b.reward_BT), gamma, 1.0, by_chunk) for b in batches]


def gae_advantage(
    batch: Batch, value_BT: np.ndarray, gamma: float, lam: float, by_chunk: bool = False
) -> np.ndarray:
    """GAE on the values before each time step; see `ale_jax.algo.values`."""
    estimate = _turn_gae if by_chunk else _gae
    arrays = value_BT, batch.reward_BT, batch.chunk_BT, batch.segment_BT
    return np.asarray(estimate(*arrays, gamma, lam)[0])


_gae = jax.jit(gae, static_argnums=(4, 5))
_turn_gae = jax.jit(turn_gae, static_argnums=(4, 5))
_chunk_starts = jax.jit(chunk_starts)
_over_chunks = jax.jit(over_chunks)
