"""Generalised advantage estimation over packed rows (arXiv 1506.02438), and AsyPPO's critics.

AsyPPO (arXiv 2510.01656) trains a few small critics, each on other responses to every prompt. GAE
uses the mean of their values. Where the critics agree, the advantage carries little new information
and is masked; where they differ most, the state is noisy and its entropy is not rewarded. One
critic without any mask is plain PPO.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


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
    action_mask_BT = chunk_BT >= 0
    value_BT, reward_BT = (jnp.where(action_mask_BT, x, 0.0) for x in (value_BT, reward_BT))

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
    along = tuple(x.T for x in (value_BT, reward_BT, segment_BT, action_mask_BT))
    _, advantage_TB = jax.lax.scan(step, nothing, along, reverse=True)
    advantage_BT = advantage_TB.T
    return advantage_BT, jnp.where(action_mask_BT, advantage_BT + value_BT, 0.0)


def critic_of(member_BT: np.ndarray, critics: int) -> np.ndarray:
    """Which critic learns from each token, int [B, T]: of a group, member m belongs to critic m mod
    `critics`, so that each prompt's responses are divided evenly and disjointly. -1 on padding."""
    return np.where(member_BT >= 0, member_BT % critics, -1)


def critic_loss(
    value_BT: jax.Array,
    return_BT: jax.Array,
    own_BT: jax.Array,
    loss_denominator: jax.Array | float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """L_m = (1/Z) sum_t (V_m(s_t) - R_t)^2 over the tokens that this critic learns from.

    s_t is what stands before token t. Z: how many such tokens the whole step has. Returns the loss
    and sums for the metrics. What lies outside `own_BT` has no influence, nan included.
    """
    assert value_BT.shape == return_BT.shape == own_BT.shape
    error_BT = jnp.where(own_BT, value_BT - return_BT, 0.0)  # before the square, for the gradient
    squares = (error_BT * error_BT).sum()
    return squares / loss_denominator, {"tokens": own_BT.sum(dtype=jnp.float32), "squares": squares}


def agreement_masks(
    spread_U: np.ndarray, mask_share: float, entropy_share: float
) -> tuple[np.ndarray, np.ndarray]:
    """(I^A, I^H) of the policy tokens of a step (U), bool; spread: the std of the critics' values.

    I^A is False on the share of tokens with the lowest spread, I^H on that with the highest. Of n
    tokens floor(share * n) go, fewer if others are equal to the last of them: critics that say the
    same everywhere, as at their birth, mask nothing.
    """
    ordered_U = np.sort(spread_U)
    n = len(ordered_U)
    low, high = int(mask_share * n), int(entropy_share * n)
    teaches_U = spread_U >= ordered_U[low] if low < n else np.zeros(n, bool)
    explores_U = spread_U <= ordered_U[n - 1 - high] if high < n else np.zeros(n, bool)
    return teaches_U, explores_U


def explained_variance(value_U: np.ndarray, return_U: np.ndarray) -> float:
    """1 - Var(R - V) / Var(R) over the tokens of a step: 1 is a perfect critic, 0 one that says the
    same everywhere. 0 where all returns are equal and there is nothing to explain."""
    variance = float(np.var(return_U))
    return 1.0 - float(np.var(return_U - value_U)) / variance if variance > 0 else 0.0
