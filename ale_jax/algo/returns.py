"""Credit: from the rewards of N trajectories to one advantage per chunk.

Shapes: N trajectories of a step, C chunks at most. `reward_NC` is each chunk's own reward, the
outcome on the last one; `outcome_N` the episode's reward; `num_chunks_N` the chunks that
trajectory n really has (its later columns are padding and may hold anything); `group_N` in
0..num_groups-1; `valid_N` False where the episode failed for reasons of the system, so that its
reward says nothing about the policy.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.algo.grpo import GrpoHypers
from ale_jax.algo.ipa import IpaHypers

STD_FLOOR = 1e-6


class Credit(NamedTuple):
    """advantage_NC: float32, 0 on padding and on invalid trajectories.

    positive_N: bool, the trajectory did better than its baseline (T+ of Eq 9).
    """

    advantage_NC: jax.Array
    positive_N: jax.Array


def _real_chunks(num_chunks_N: jax.Array, num_chunks: int) -> jax.Array:
    return jnp.arange(num_chunks)[None, :] < num_chunks_N[:, None]


def chunk_returns(reward_NC: jax.Array, num_chunks_N: jax.Array, gamma: float) -> jax.Array:
    """G_k = r_k + gamma G_{k+1}, one step of gamma per chunk, never per token. 0 on padding.

    Eq 7 of arXiv 2512.24873, G_k = gamma^(K-k) R, is the case in which only the last of the K
    chunks is rewarded.
    """
    assert reward_NC.ndim == 2 and num_chunks_N.shape == reward_NC.shape[:1]
    real_NC = _real_chunks(num_chunks_N, reward_NC.shape[1])
    reward_CN = jnp.where(real_NC, reward_NC, 0.0).T

    def step(next_N, reward_N):
        return_N = reward_N + gamma * next_N
        return return_N, return_N

    _, return_CN = jax.lax.scan(step, jnp.zeros_like(reward_CN[0]), reward_CN, reverse=True)
    return return_CN.T


def group_mean_baseline(
    outcome_N: jax.Array, group_N: jax.Array, valid_N: jax.Array, num_groups: int
) -> jax.Array:
    """Mean outcome of the valid members of each trajectory's group, [N]; 0 if it has none.

    Episodes that the system lost are left out, not counted as failures: scored 0 they would
    make every surviving member look better than it was.
    """
    assert outcome_N.shape == group_N.shape == valid_N.shape
    member_NG = (group_N[:, None] == jnp.arange(num_groups)[None, :]) & valid_N[:, None]
    value_NG = jnp.where(member_NG, outcome_N[:, None], 0.0)
    count_G = member_NG.sum(axis=0).astype(outcome_N.dtype)
    mean_G = value_NG.sum(axis=0) / jnp.maximum(count_G, 1.0)
    # Rounding can put the mean outside its members' range. A group of equals has to come out at
    # exactly zero advantage: Adam would blow a gradient of 1e-8 up into a full step.
    low_G = jnp.where(member_NG, outcome_N[:, None], jnp.inf).min(axis=0)
    high_G = jnp.where(member_NG, outcome_N[:, None], -jnp.inf).max(axis=0)
    mean_G = jnp.where(count_G > 0, jnp.clip(mean_G, low_G, high_G), 0.0)
    return mean_G[group_N]


def ipa_advantages(
    reward_NC: jax.Array,
    outcome_N: jax.Array,
    num_chunks_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    num_groups: int,
    hp: IpaHypers,
) -> Credit:
    """A_k = discounted return in which the last chunk's reward is R - baseline.

    The baseline meets the outcome before the discount: A_k = gamma^(K-k) (R - b) when only the
    outcome is rewarded. So all chunks of a trajectory push the same way, more weakly the earlier
    they are, and a group of equal outcomes teaches nothing. Taken off afterwards, gamma^(K-k) R - b
    would punish the early chunks of every long success. The price: with gamma < 1 the subtracted
    term depends on the trajectory's length, so it is part of the objective (the discounted,
    centred outcome) and not only a control variate.

    Positive means R > b. For rewards of 0 and 1 that is the paper's R > 0 wherever the advantage is
    not zero; for partial rewards it keeps the truncated ratio on every push downwards.
    """
    failed_N = outcome_N <= 0.0
    malus_N = jnp.where(failed_N, hp.failure_reward, 0.0)
    baseline_N = jnp.zeros_like(outcome_N)
    if hp.baseline == "group_mean":
        baseline_N = group_mean_baseline(outcome_N + malus_N, group_N, valid_N, num_groups)

    last_NC = jnp.arange(reward_NC.shape[1])[None, :] == num_chunks_N[:, None] - 1
    centred_NC = reward_NC + jnp.where(last_NC, (malus_N - baseline_N)[:, None], 0.0)
    advantage_NC = chunk_returns(centred_NC, num_chunks_N, hp.gamma)
    return Credit(
        advantage_NC=jnp.where(valid_N[:, None], advantage_NC, 0.0),
        positive_N=valid_N & (outcome_N + malus_N > baseline_N),
    )


def grpo_advantages(
    outcome_N: jax.Array,
    num_chunks_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    num_groups: int,
    max_chunks: int,
    hp: GrpoHypers,
) -> Credit:
    """A = (R - mean) / std over the valid members of the group, the same for all chunks.

    std is of the population (divided by n). Source: arXiv 2402.03300, outcome supervision.
    """
    centred_N = outcome_N - group_mean_baseline(outcome_N, group_N, valid_N, num_groups)
    centred_N = jnp.where(valid_N, centred_N, 0.0)
    if hp.scale_by_std:
        variance_N = group_mean_baseline(centred_N**2, group_N, valid_N, num_groups)
        centred_N = centred_N / (jnp.sqrt(variance_N) + STD_FLOOR)
    real_NC = _real_chunks(num_chunks_N, max_chunks)
    return Credit(
        advantage_NC=jnp.where(real_NC, centred_N[:, None], 0.0),
        positive_N=centred_N > 0.0,
    )
