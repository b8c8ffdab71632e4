"""Generalised advantage estimation over packed rows (arXiv 1506.02438) by tokens or by chunks
(Turn-PPO, arXiv 2512.17008), and AsyPPO's critics.

AsyPPO (arXiv 2510.01656) trains a few small critics, each on different responses to every prompt.
GAE uses the mean of their values. Where the critics agree, the advantage carries little new
information and is masked; where they differ most, the state is noisy and its entropy is not
rewarded. One critic without any mask is plain PPO.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

Columns = tuple[jax.Array, ...]  # of one token, [B] each, as `jax.lax.scan` passes them
Array = jax.Array | np.ndarray

FULL_TRUST = 1 / 3  # see `blend`; measured in the laboratory


def gae(
    value_BT: jax.Array,
    reward_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    gamma: float,
    lam: float,
) -> tuple[jax.Array, jax.Array]:
    """Returns (advantage_BT, target_BT) on policy tokens, 0 elsewhere; float32 [B, T].

    delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1};  target = A_t + V_t,
    where t + 1 is the next token that the policy wrote in the same segment. Observations are
    therefore not time steps, and neither credit nor value leaks between the trajectories of a row.
    The value after the last policy token is 0, because an episode that ends at a limit is graded as
    it stands.

    value_BT: value of the state before token t is written; not read outside policy tokens. With
    values of 0 and lam 1 the advantage is REINFORCE's discounted return.

    Two tokens, of which the last is rewarded, with the values 1/2 and 1/2 and gamma 1. delta is 0
    and 1/2; with lambda 1/2 the first token has half of the second one's advantage:

        >>> value_BT, reward_BT = jnp.array([[0.5, 0.5]]), jnp.array([[0.0, 1.0]])
        >>> chunk_BT = jnp.array([[0, 0]])
        >>> advantage_BT, target_BT = gae(value_BT, reward_BT, chunk_BT, chunk_BT + 1, 1.0, 0.5)
        >>> advantage_BT.tolist(), target_BT.tolist()
        ([[0.25, 0.5]], [[0.75, 1.0]])
    """
    assert value_BT.shape == reward_BT.shape == chunk_BT.shape == segment_BT.shape
    action_mask_BT = chunk_BT >= 0
    value_BT, reward_BT = (jnp.where(action_mask_BT, x, 0.0) for x in (value_BT, reward_BT))

    def step(later: Columns, now: Columns) -> tuple[Columns, jax.Array]:
        value_B, reward_B, segment_B, written_B = now
        next_value_B, next_advantage_B, next_segment_B = later
        same_B = segment_B == next_segment_B
        delta_B = reward_B + gamma * jnp.where(same_B, next_value_B, 0.0) - value_B
        advantage_B = delta_B + gamma * lam * jnp.where(same_B, next_advantage_B, 0.0)
        here = value_B, advantage_B, segment_B
        later = jax.tree.map(lambda x, y: jnp.where(written_B, x, y), here, later)
        return later, jnp.where(written_B, advantage_B, 0.0)

    zeros_B = jnp.zeros_like(value_BT[:, 0])
    nothing: Columns = zeros_B, zeros_B, jnp.zeros_like(segment_BT[:, 0])
    along = tuple(x.T for x in (value_BT, reward_BT, segment_BT, action_mask_BT))
    _, advantage_TB = jax.lax.scan(step, nothing, along, reverse=True)
    advantage_BT = advantage_TB.T
    return advantage_BT, jnp.where(action_mask_BT, advantage_BT + value_BT, 0.0)


def turn_gae(
    value_BT: jax.Array,
    reward_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    gamma: float,
    lam: float,
) -> tuple[jax.Array, jax.Array]:
    """Returns (advantage_BT on policy tokens, target_BT on the first token of each chunk), 0
    elsewhere; float32 [B, T].

    Turn-PPO (arXiv 2512.17008): the time steps of `gae` are chunks. The value before a chunk is
    that before its first token, its reward is the sum over its tokens, and all of its tokens have
    its advantage. gamma and lam act once per chunk. With chunks of one token it is `gae`.

    The example of `gae`, with chunks of two tokens as its time steps:

        >>> value_BT = jnp.array([[0.5, 7.0, 0.5, 7.0]])  # 7: before no time step, and not read
        >>> reward_BT = jnp.array([[0.0, 0.0, 0.0, 1.0]])
        >>> chunk_BT = jnp.array([[0, 0, 1, 1]])
        >>> every_BT = jnp.ones_like(chunk_BT)
        >>> advantage_BT, target_BT = turn_gae(value_BT, reward_BT, chunk_BT, every_BT, 1.0, 0.5)
        >>> advantage_BT.tolist(), target_BT.tolist()
        ([[0.25, 0.25, 0.5, 0.5]], [[0.75, 0.0, 1.0, 0.0]])
    """
    start_BT = jnp.where(chunk_starts(chunk_BT), chunk_BT, -1)
    total_BT = _rest_of_chunk(reward_BT, chunk_BT)
    advantage_BT, target_BT = gae(value_BT, total_BT, start_BT, segment_BT, gamma, lam)
    return over_chunks(advantage_BT, chunk_BT), target_BT


def chunk_starts(chunk_BT: jax.Array) -> jax.Array:
    """Marks the tokens that are the first of their chunk, bool [B, T].

    >>> chunk_starts(jnp.array([[-1, 0, 0, 1]])).tolist()
    [[False, True, False, True]]
    """
    before_BT = jnp.pad(chunk_BT, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return (chunk_BT >= 0) & (chunk_BT != before_BT)


def over_chunks(x_BT: jax.Array, chunk_BT: jax.Array) -> jax.Array:
    """Gives each policy token the x of the first token of its chunk, [B, T]; 0 elsewhere.

    >>> over_chunks(jnp.array([[9, 5, 6, 7]]), jnp.array([[-1, 0, 0, 1]])).tolist()
    [[0, 5, 5, 7]]
    """
    places_BT = jnp.where(chunk_starts(chunk_BT), jnp.arange(chunk_BT.shape[1])[None, :], 0)
    first_BT = jax.lax.cummax(places_BT, axis=1)
    x_BT = jnp.take_along_axis(x_BT, first_BT, axis=1)
    return jnp.where(chunk_BT >= 0, x_BT, jnp.zeros((), x_BT.dtype))


def _rest_of_chunk(x_BT: jax.Array, chunk_BT: jax.Array) -> jax.Array:
    """Sums x from each policy token to the end of its chunk."""

    def step(later: Columns, now: Columns) -> tuple[Columns, jax.Array]:
        (x_B, chunk_B), (sum_B, chunk_later_B) = now, later
        sum_B = x_B + jnp.where(chunk_B == chunk_later_B, sum_B, 0.0)
        return (sum_B, chunk_B), sum_B

    nothing: Columns = jnp.zeros_like(x_BT[:, 0]), jnp.full_like(chunk_BT[:, 0], -1)
    along: Columns = x_BT.T, chunk_BT.T
    _, sum_TB = jax.lax.scan(step, nothing, along, reverse=True)
    return sum_TB.T


def critic_of(member_BT: np.ndarray, critics: int) -> np.ndarray:
    """Returns the index of the critic that learns from each token, int [B, T]; -1 on padding.

    Member m of a group belongs to critic m mod `critics`, so that each prompt's responses are
    divided evenly and disjointly.

        >>> critic_of(np.array([[0, 1, 2, 3, -1]]), critics=2).tolist()
        [[0, 1, 0, 1, -1]]
    """
    return np.where(member_BT >= 0, member_BT % critics, -1)


def critic_loss(
    value_BT: jax.Array,
    return_BT: jax.Array,
    own_BT: jax.Array,
    loss_denominator: jax.Array | float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns L_m = (1/Z) sum_t (V_m(s_t) - R_t)^2 over the tokens that this critic learns from,
    and sums for the metrics.

    s_t is the state before token t. Z: number of such tokens in the whole step (of `turn_gae`, only
    the first of each chunk is one). Returns the loss and sums for the metrics. Values outside
    `own_BT` have no influence, even if they are nan.

        >>> value_BT, return_BT = jnp.array([[1.0, 3.0, jnp.nan]]), jnp.array([[0.0, 1.0, 0.0]])
        >>> float(critic_loss(value_BT, return_BT, jnp.array([[True, True, False]]), 2)[0])
        2.5
    """
    assert value_BT.shape == return_BT.shape == own_BT.shape
    error_BT = jnp.where(own_BT, value_BT - return_BT, 0.0)  # masked first: no nan in the gradient
    squares = (error_BT * error_BT).sum()
    return squares / loss_denominator, {"tokens": own_BT.sum(dtype=jnp.float32), "squares": squares}


def agreement_masks(
    spread_U: np.ndarray, mask_share: float, entropy_share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the masks (I^A, I^H) of the policy tokens of a step, bool [U]. spread_U: the std of
    the critics' values.

    I^A is False on the share of tokens with the lowest spread, I^H on the share with the highest.
    Of n tokens floor(share * n) are masked, or fewer if others tie with the last of them. Critics
    that agree everywhere, as they may at initialisation, therefore mask nothing.

    Of four tokens, a quarter with the lowest spread and a half with the highest are masked:

        >>> teaches_U, explores_U = agreement_masks(np.array([0.3, 0.1, 0.4, 0.2]), 0.25, 0.5)
        >>> teaches_U.tolist(), explores_U.tolist()
        ([True, False, True, True], [False, True, False, True])
    """
    ordered_U = np.sort(spread_U)
    n = len(ordered_U)
    low, high = int(mask_share * n), int(entropy_share * n)
    teaches_U = spread_U >= ordered_U[low] if low < n else np.zeros(n, bool)
    explores_U = spread_U <= ordered_U[n - 1 - high] if high < n else np.zeros(n, bool)
    return teaches_U, explores_U


def explained_variance(value: Array, return_: Array, where: Array | bool = True) -> jax.Array:
    """Returns 1 - Var(R - V) / Var(R) over the time steps of a training step, which `where`
    selects: 1 for a perfect critic, 0 for a constant one.

    0 if all returns are equal, because there is nothing to explain. The arrays are NumPy's or
    JAX's. Values that are half of the returns leave a quarter of the variance:

        >>> float(explained_variance(np.array([0.0, 0.5]), np.array([0.0, 1.0])))
        0.75
    """
    variance, error = return_.var(where=where), (return_ - value).var(where=where)
    return jnp.where(variance > 0, 1.0 - error / jnp.where(variance > 0, variance, 1.0), 0.0)


def blend(trusting: Array, cautious: Array, explained: jax.Array) -> jax.Array:
    """Mixes two estimates of the same advantages: `trusting`, which trusts the critics' values
    (lambda below 1), and `cautious` (lambda 1).

    Values that explain nothing leave lambda as a mere discount: a chunk n chunks before the end has
    lambda^n of the outcome, so that early decisions have next to no credit.

    explained: share of the outcomes' variance that the values at the last time steps explain. Only
    there can good critics be told from poor ones, since before the decisions nobody knows the
    outcome. A share of FULL_TRUST is enough, as the last decision is still to come.

    Values that explain a sixth have half of the trust:

        >>> float(blend(jnp.array(1.0), jnp.array(0.0), jnp.array(1 / 6)))
        0.5
    """
    share = (explained / FULL_TRUST).clip(0.0, 1.0)
    return share * trusting + (1.0 - share) * cautious
