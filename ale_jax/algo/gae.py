"""Generalised advantage estimation over packed rows (arXiv 1506.02438)."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gae(
    value_BT: jax.Array,
    reward_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    gamma: float,
    lam: float,
) -> tuple[jax.Array, jax.Array]:
    """(advantage_BT, target_BT) of the policy's tokens, 0 elsewhere.

    delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1};  target = A_t + V_t,
    where t + 1 is the next token that the policy wrote in the same segment: observations are no
    time steps, and neither credit nor value leaks from one trajectory of a row into another. After
    the last one the value is 0: episodes that a limit ends are graded as they stand.

    value_BT: of the state before token t is written; what it says elsewhere is not read. With
    values of 0 and lam 1 the advantage is REINFORCE's discounted return.
    """
    assert value_BT.shape == reward_BT.shape == chunk_BT.shape == segment_BT.shape
    written_BT = chunk_BT >= 0
    value_BT, reward_BT = (jnp.where(written_BT, x, 0.0) for x in (value_BT, reward_BT))

    def step(later, now):
        value_B, reward_B, segment_B, written_B = now
        next_value_B, next_advantage_B, next_segment_B = later
        same_B = segment_B == next_segment_B
        delta_B = reward_B + gamma * jnp.where(same_B, next_value_B, 0.0) - value_B
        advantage_B = delta_B + gamma * lam * jnp.where(same_B, next_advantage_B, 0.0)
        here = value_B, advantage_B, segment_B
        later = jax.tree.map(lambda x, y: jnp.where(written_B, x, y), here, later)
        return later, jnp.where(written_B, advantage_B, 0.0)

    zeros_B = jnp.zeros_like(value_BT[:, 0])
    nothing = zeros_B, zeros_B, jnp.zeros_like(segment_BT[:, 0])
    along = tuple(x.T for x in (value_BT, reward_BT, segment_BT, written_BT))
    _, advantage_TB = jax.lax.scan(step, nothing, along, reverse=True)
    advantage_BT = advantage_TB.T
    return advantage_BT, jnp.where(written_BT, advantage_BT + value_BT, 0.0)
