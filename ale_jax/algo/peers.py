"""Credit by comparison with the members of a group that were in the same state: the step advantages
of GiGPO (arXiv 2505.10978) and HGPO (2602.22817), and trees (Tree-GRPO, 2509.21240; TreeRL,
2506.11902; VinePPO, 2410.01679).

anchor_NC identifies the state before each chunk; real_NC: the chunks of valid trajectories.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.algo.baselines import key_count, key_mean, standardise


def against_history(
    return_NC: jax.Array, anchor_NC: jax.Array, real_NC: jax.Array, std: str
) -> jax.Array:
    """Each chunk's return relative to those after the same whole history, [N, C].

    Equal histories are equally long, so only chunks of one column are compared. anchor_NC: see
    `ale_jax.algo.advantages`.
    """

    def of_column(return_N, anchor_N, real_N):
        keys = {"group": jnp.where(real_N, anchor_N, 0)}
        return standardise(return_N, keys, real_N, len(return_N), "group", std)

    columns = jax.vmap(of_column, in_axes=1, out_axes=1)
    return columns(return_NC, anchor_NC, real_NC)


def against_state(
    return_NC: jax.Array, anchor_NC: jax.Array, real_NC: jax.Array, std: str
) -> tuple[jax.Array, jax.Array]:
    """(Each chunk's return relative to those of all chunks of its group in the same state, whether
    there is another one), [N, C].

    A trajectory may be in a state several times, and others at other times. anchor_NC: 0..N C - 1.
    """
    key_U, real_U = jnp.where(real_NC, anchor_NC, 0).reshape(-1), real_NC.reshape(-1)
    keys = {"group": key_U}
    step_U = standardise(return_NC.reshape(-1), keys, real_U, len(key_U), "group", std)
    peers_U = real_U & (key_count(key_U, real_U, len(key_U)) > 1)
    return step_U.reshape(return_NC.shape), peers_U.reshape(return_NC.shape)


def hierarchy(
    return_NC: jax.Array, anchor_NCH: jax.Array, real_NC: jax.Array, std: str, exponent: float
) -> jax.Array:
    """HGPO: the mean over k = 1..H of `against_state` by the last k observations, [N, C].

    The weights are k^exponent, so that peers with more of the same history count more. Depths at
    which a chunk has no peer are left out of its mean.
    """
    depths = [
        against_state(return_NC, anchor_NCH[:, :, k], real_NC, std)
        for k in range(anchor_NCH.shape[2])
    ]
    step_NCH, peers_NCH = (jnp.stack(each, axis=2) for each in zip(*depths))
    weight_H = jnp.arange(1.0, anchor_NCH.shape[2] + 1) ** exponent
    weight_NCH = jnp.where(peers_NCH, weight_H, 0.0)
    total_NC1 = jnp.maximum(weight_NCH.sum(axis=2, keepdims=True), 1.0)  # no weight is below 1
    return (weight_NCH / total_NC1 * step_NCH).sum(axis=2)


def along_tree(
    outcome_N: jax.Array, root_N: jax.Array, anchor_NC: jax.Array, real_NC: jax.Array
) -> jax.Array:
    """P(state after the chunk) - P(state before it), [N, C]; not masked.

    P is the mean outcome of the valid members that share the history up to a state; root_N: that of
    each member's group, which shares the beginning. From the last state that a trajectory shares
    with others on, every chunk has R - P of that state: nobody knows which of them made the
    difference. The differences up to there sum to R - P(root).

    Three members of a group saw t a b, t a c and t d e, and their outcomes are 1, 0 and 0:

        before_NC      shared_NC     last_N1   result
        1/3  1/2  1    yes yes no    1          1/6   1/2   1/2
        1/3  1/2  0    yes yes no    1          1/6  -1/2  -1/2
        1/3  0    0    yes no  no    0         -1/3  -1/3  -1/3
    """

    def of_column(anchor_N, real_N):
        key_N = jnp.where(real_N, anchor_N, 0)
        shared_N = real_N & (key_count(key_N, real_N, len(key_N)) > 1)
        return key_mean(outcome_N, key_N, real_N, len(key_N)), shared_N

    before_NC, shared_NC = jax.vmap(of_column, in_axes=1, out_axes=1)(anchor_NC, real_NC)
    before_NC, shared_NC = before_NC.at[:, 0].set(root_N), shared_NC.at[:, 0].set(True)
    last_N1 = shared_NC.sum(axis=1, keepdims=True) - 1  # who shares a history shares its beginning
    after_NC = jnp.roll(before_NC, -1, axis=1)
    rest_N1 = outcome_N[:, None] - jnp.take_along_axis(before_NC, last_N1, axis=1)
    forks_NC = jnp.arange(before_NC.shape[1])[None, :] < last_N1
    return jnp.where(forks_NC, after_NC - before_NC, rest_N1)
