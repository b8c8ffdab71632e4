"""Discounted returns, one step of gamma per chunk."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def real_chunks(num_chunks_N: jax.Array, num_chunks: int) -> jax.Array:
    """Which of `num_chunks` columns each of N trajectories uses, bool [N, C]."""
    return jnp.arange(num_chunks)[None, :] < num_chunks_N[:, None]


def chunk_returns(reward_NC: jax.Array, num_chunks_N: jax.Array, gamma: float) -> jax.Array:
    """G_k = r_k + gamma G_{k+1}, one step of gamma per chunk, never per token. 0 on padding.

    Eq 7 of arXiv 2512.24873, G_k = gamma^(K-k) R, is the case in which only the last of the K
    chunks is rewarded.
    """
    assert reward_NC.ndim == 2 and num_chunks_N.shape == reward_NC.shape[:1]
    real_NC = real_chunks(num_chunks_N, reward_NC.shape[1])
    reward_CN = jnp.where(real_NC, reward_NC, 0.0).T

    def step(next_N, reward_N):
        return_N = reward_N + gamma * next_N
        return return_N, return_N

    _, return_CN = jax.lax.scan(step, jnp.zeros_like(reward_CN[0]), reward_CN, reverse=True)
    return return_CN.T
