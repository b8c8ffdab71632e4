"""What critics read and what they learn: packed rows, returns, and each critic's share of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from ale_jax.algo.values import critic_of, gae
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


def value_batches(
    batches: Sequence[Batch], returns: Sequence[np.ndarray], number: int, count: int
) -> list[ValueBatch]:
    """The trajectories from which critic `number` of `count` learns, in as few batches as they
    fill."""
    own = [(critic_of(b.member_BT, count) == number) & (b.chunk_BT >= 0) for b in batches]
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


def returns(batches: Sequence[Batch], gamma: float) -> list[np.ndarray]:
    """The discounted sum of rewards from each policy token on, float32 [B, T] for each batch."""
    return [gae_advantage(b, np.zeros_like(b.reward_BT), gamma, 1.0) for b in batches]


def gae_advantage(batch: Batch, value_BT: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """GAE on the values before each token; see `ale_jax.algo.values.gae`."""
    return np.asarray(
        _gae(value_BT, batch.reward_BT, batch.chunk_BT, batch.segment_BT, gamma, lam)[0]
    )


_gae = jax.jit(gae, static_argnums=(4, 5))
