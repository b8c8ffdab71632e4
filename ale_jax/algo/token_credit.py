"""Credit whose time steps are tokens, on packed batches, of which a step has M."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.algo.algorithm import AdvantageHypers
from ale_jax.algo.gae import gae
from ale_jax.algo.normalise import standardise


def token_returns(
    reward_BT: jax.Array, chunk_BT: jax.Array, segment_BT: jax.Array, gamma: float
) -> jax.Array:
    """REINFORCE: A_t = sum_l gamma^l r_{t+l} over the policy's tokens of the trajectory."""
    zeros_BT = jnp.zeros_like(reward_BT)
    advantage_BT, _ = gae(zeros_BT, reward_BT, chunk_BT, segment_BT, gamma, lam=1.0)
    return advantage_BT


def normalise_tokens(
    advantage_MBT: jax.Array,
    written_MBT: jax.Array,
    group_MBT: jax.Array,
    tag_G: jax.Array,
    hp: AdvantageHypers,
) -> jax.Array:
    """`hp`'s mean and std over the step's policy tokens, then its clip. group_MBT and tag_G in
    0..G-1; REINFORCE++ (arXiv 2501.03262) is mean and std of the batch."""
    valid_U, group_U = written_MBT.reshape(-1), jnp.maximum(group_MBT.reshape(-1), 0)
    keys = {"group": group_U, "tag": tag_G[group_U], "batch": jnp.zeros_like(group_U)}
    advantage_U = standardise(advantage_MBT.reshape(-1), keys, valid_U, len(tag_G), hp.mean, hp.std)
    if hp.clip:
        advantage_U = jnp.clip(advantage_U, -hp.clip, hp.clip)
    return advantage_U.reshape(advantage_MBT.shape)
