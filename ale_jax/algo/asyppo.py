"""AsyPPO (arXiv 2510.01656): a few small critics that each see other responses to every prompt.

Their mean is the value that GAE is given; where they agree, the advantage teaches nothing new and
is masked; where they differ most, the state is noise and its entropy is not rewarded. One critic
with nothing masked is plain PPO.

Shapes: M critics, t the policy tokens of a whole step, of all its microbatches.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def critic_of(member_BT: np.ndarray, critics: int) -> np.ndarray:
    """Which critic learns from each token, int [B, T]: of a group, member m belongs to critic m mod
    M, so that each prompt's responses are divided evenly and disjointly. -1 on padding."""
    return np.where(member_BT >= 0, member_BT % critics, -1)


def critic_loss(
    value_BT: jax.Array, return_BT: jax.Array, own_BT: jax.Array, normaliser: jax.Array | float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """L_m = (1/Z) sum_t (V_m(s_t) - R_t)^2 over the tokens that this critic learns from.

    s_t is what stands before token t. Z: how many such tokens the whole step has. Returns the loss
    and sums for the metrics. What lies outside `own_BT` has no influence, nan included.
    """
    assert value_BT.shape == return_BT.shape == own_BT.shape
    error_BT = jnp.where(own_BT, value_BT - return_BT, 0.0)  # before the square, for the gradient
    squares = (error_BT * error_BT).sum()
    return squares / normaliser, {"tokens": own_BT.sum(dtype=jnp.float32), "squares": squares}


def agreement_masks(
    spread_t: np.ndarray, mask_share: float, entropy_share: float
) -> tuple[np.ndarray, np.ndarray]:
    """(I^A, I^H) of every policy token of a step, bool; spread: the std of the critics' values.

    I^A is False on the share of tokens with the lowest spread, I^H on that with the highest. Of n
    tokens floor(share * n) go, fewer if others are equal to the last of them: critics that say the
    same everywhere, as at their birth, mask nothing.
    """
    ordered_t = np.sort(spread_t)
    n = len(ordered_t)
    low, high = int(mask_share * n), int(entropy_share * n)
    teaches_t = spread_t >= ordered_t[low] if low < n else np.zeros(n, bool)
    explores_t = spread_t <= ordered_t[n - 1 - high] if high < n else np.zeros(n, bool)
    return teaches_t, explores_t


def explained_variance(value_t: np.ndarray, return_t: np.ndarray) -> float:
    """1 - Var(R - V) / Var(R) over the tokens of a step: 1 is a perfect critic, 0 one that says the
    same everywhere. 0 where all returns are equal and there is nothing to explain."""
    variance = float(np.var(return_t))
    return 1.0 - float(np.var(return_t - value_t)) / variance if variance > 0 else 0.0
