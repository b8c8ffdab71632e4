"""Returns, and the baselines and scales that make them advantages.

A unit is a trajectory, a chunk or a token. Its key (0..num_keys-1) identifies the group, tag or
batch that it is compared with. Units with `valid_U` False are excluded from the statistics of their
key. Chunk returns are discounted once per chunk (Eq 7 of arXiv 2512.24873); token returns and their
scales are computed on the packed microbatches of a step.

A chunk may also be compared with those of the members of its group that were in the same state: the
step advantages of GiGPO (arXiv 2505.10978) and HGPO (2602.22817), and trees (Tree-GRPO, 2509.21240;
TreeRL, 2506.11902; VinePPO, 2410.01679). anchor_NC identifies the state before each chunk, and
node_NC that of a tree (`ale_jax.algo.advantages`); real_NC: the chunks of valid trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ale_jax.algo.values import gae
from ale_jax.config.algo import AdvantageHypers

STD_FLOOR = 1e-6  # below this, the spread of rewards of order 1 is rounding error


def key_mean(x_U: jax.Array, key_U: jax.Array, valid_U: jax.Array, num_keys: int) -> jax.Array:
    """Returns the mean over the valid units of each unit's key, [U]; 0 if the key has none.

    Episodes that the system lost are excluded instead of counted as failures: with a score of 0
    they would make every other member look better than it was.

    The third unit is not valid, and is told the mean of the first key:

        >>> valid_U = jnp.array([True, True, False, True])
        >>> key_mean(jnp.array([1.0, 0.0, 9.0, 5.0]), jnp.array([0, 0, 0, 1]), valid_U, 2).tolist()
        [0.5, 0.5, 0.5, 5.0]
    """
    assert x_U.shape == key_U.shape == valid_U.shape, (x_U.shape, key_U.shape, valid_U.shape)
    own_U = _segments(key_U, valid_U, num_keys)
    count_K = jax.ops.segment_sum(valid_U.astype(x_U.dtype), own_U, num_keys)
    mean_K = jax.ops.segment_sum(x_U, own_U, num_keys) / jnp.maximum(count_K, 1.0)
    # Rounding can put the mean outside its members' range. A group of equal members must have an
    # advantage of exactly zero, because Adam would scale a gradient of 1e-8 up to a full step.
    low_K = jax.ops.segment_min(x_U, own_U, num_keys)
    high_K = jax.ops.segment_max(x_U, own_U, num_keys)
    mean_K = jnp.where(count_K > 0, jnp.clip(mean_K, low_K, high_K), 0.0)
    return mean_K[key_U]


def key_count(key_U: jax.Array, valid_U: jax.Array, num_keys: int) -> jax.Array:
    """Counts the valid units of each unit's key, int [U]."""
    own_U = _segments(key_U, valid_U, num_keys)
    return jax.ops.segment_sum(valid_U.astype(jnp.int32), own_U, num_keys)[key_U]


def _segments(key_U: jax.Array, valid_U: jax.Array, num_keys: int) -> jax.Array:
    """Returns the key of each valid unit, and one beyond the last, which no sum counts, of the
    others. Sums by segment hold a number per unit; a table of units and keys would hold gigabytes
    for the tokens of a step."""
    return jnp.where(valid_U, key_U, num_keys)


def baseline(
    x_U: jax.Array, keys: Mapping[str, jax.Array], valid_U: jax.Array, num_keys: int, mean: str
) -> jax.Array:
    """Returns the baseline of each unit, [U]: 0 ("none"), the mean over its "group", "tag" or
    "batch", or over the other members of its group ("leave_one_out", RLOO, arXiv 2402.14740).

    keys: by those three names. A unit without others is its own baseline, so its advantage is 0.

    One success among three attempts:

        >>> keys, valid_U = {"group": jnp.array([0, 0, 0])}, jnp.array([True, True, True])
        >>> x_U = jnp.array([1.0, 0.0, 0.0])
        >>> abs(baseline(x_U, keys, valid_U, 1, "leave_one_out")).round(3).tolist()
        [0.0, 0.5, 0.5]
    """
    if mean == "none":
        return jnp.zeros_like(x_U)
    if mean != "leave_one_out":
        return key_mean(x_U, keys[mean], valid_U, num_keys)
    group_U = keys["group"]
    count_U = key_count(group_U, valid_U, num_keys).astype(x_U.dtype)
    above_U = x_U - key_mean(x_U, group_U, valid_U, num_keys)
    # (n mean - x) / (n - 1), written so that equal members are exactly their own baseline.
    return x_U - jnp.where(count_U > 1, count_U / jnp.maximum(count_U - 1.0, 1.0), 0.0) * above_U


def divisor(
    x_U: jax.Array, keys: Mapping[str, jax.Array], valid_U: jax.Array, num_keys: int, std: str
) -> jax.Array:
    """Returns what each unit's advantage is divided by, [U]: 1 ("none"), or the population standard
    deviation over its "group", "tag" or "batch". Infinite if all are equal, which makes the
    advantage 0.

    The outcomes 1 and 0 deviate by 1/2, and two equal ones not at all:

        >>> keys, valid_U = {"group": jnp.array([0, 0, 1, 1])}, jnp.ones(4, bool)
        >>> divisor(jnp.array([1.0, 0.0, 1.0, 1.0]), keys, valid_U, 2, "group").round(3).tolist()
        [0.5, 0.5, inf, inf]
    """
    if std == "none":
        return jnp.ones_like(x_U)
    above_U = jnp.where(valid_U, x_U - key_mean(x_U, keys[std], valid_U, num_keys), 0.0)
    std_U = jnp.sqrt(key_mean(above_U**2, keys[std], valid_U, num_keys))
    return jnp.where(std_U > 0.0, std_U + STD_FLOOR, jnp.inf)


def standardise(
    x_U: jax.Array,
    keys: Mapping[str, jax.Array],
    valid_U: jax.Array,
    num_keys: int,
    mean: str,
    std: str,
) -> jax.Array:
    """Returns (x - baseline) / divisor, [U]; 0 where not valid.

    With mean and standard deviation of the group, one success and one failure are GRPO's +1 and -1:

        >>> keys, valid_U = {"group": jnp.array([0, 0])}, jnp.ones(2, bool)
        >>> standardise(jnp.array([1.0, 0.0]), keys, valid_U, 1, "group", "group").round(3).tolist()
        [1.0, -1.0]
    """
    above_U = x_U - baseline(x_U, keys, valid_U, num_keys, mean)
    return jnp.where(valid_U, above_U / divisor(x_U, keys, valid_U, num_keys, std), 0.0)


def real_chunks(num_chunks_N: jax.Array, num_chunks: int) -> jax.Array:
    """Marks which of `num_chunks` columns each of N trajectories uses, bool [N, C]."""
    return jnp.arange(num_chunks)[None, :] < num_chunks_N[:, None]


def chunk_returns(reward_NC: jax.Array, num_chunks_N: jax.Array, gamma: float) -> jax.Array:
    """Returns G_k = r_k + gamma G_{k+1}, [N, C], with one step of gamma per chunk and none per
    token; 0 on padding.

    Eq 7 of arXiv 2512.24873, G_k = gamma^(K-k) R, is the case in which only the last of the K
    chunks is rewarded.

    Three chunks of which the last one succeeds, and one chunk:

        >>> reward_NC = jnp.array([[0.0, 0.0, 1.0], [1.0, 9.0, 9.0]])
        >>> chunk_returns(reward_NC, jnp.array([3, 1]), gamma=0.5).tolist()
        [[0.25, 0.5, 1.0], [1.0, 0.0, 0.0]]
    """
    assert reward_NC.ndim == 2 and num_chunks_N.shape == reward_NC.shape[:1]
    real_NC = real_chunks(num_chunks_N, reward_NC.shape[1])
    reward_CN = jnp.where(real_NC, reward_NC, 0.0).T

    def step(next_N: jax.Array, reward_N: jax.Array) -> tuple[jax.Array, jax.Array]:
        return_N = reward_N + gamma * next_N
        return return_N, return_N

    _, return_CN = jax.lax.scan(step, jnp.zeros_like(reward_CN[0]), reward_CN, reverse=True)
    return return_CN.T


def against_history(
    return_NC: jax.Array, anchor_NC: jax.Array, real_NC: jax.Array, std: str
) -> jax.Array:
    """Returns each chunk's return relative to those after the same whole history, [N, C].

    Equal histories are equally long, so only chunks of one column are compared.

    Two members begin alike and then part, so that nobody is compared with them any more:

        >>> return_NC, anchor_NC = jnp.array([[1.0, 1.0], [0.0, 0.0]]), jnp.array([[0, 0], [0, 1]])
        >>> against_history(return_NC, anchor_NC, jnp.ones((2, 2), bool), "none").tolist()
        [[0.5, 0.0], [-0.5, 0.0]]
    """

    def of_column(return_N: jax.Array, anchor_N: jax.Array, real_N: jax.Array) -> jax.Array:
        keys = {"group": jnp.where(real_N, anchor_N, 0)}
        return standardise(return_N, keys, real_N, len(return_N), "group", std)

    columns = jax.vmap(of_column, in_axes=1, out_axes=1)
    return columns(return_NC, anchor_NC, real_NC)


def against_state(
    return_NC: jax.Array, anchor_NC: jax.Array, real_NC: jax.Array, std: str
) -> tuple[jax.Array, jax.Array]:
    """Returns each chunk's return relative to those of all chunks of its group in the same state,
    and whether there is another one, both [N, C].

    A trajectory may be in a state several times, and others at other times. anchor_NC: 0..N C - 1.

    The second chunk of the first member and the first one of the second were in one state (1):

        >>> return_NC, anchor_NC = jnp.array([[4.0, 2.0], [0.0, 5.0]]), jnp.array([[0, 1], [1, 3]])
        >>> step_NC, peers_NC = against_state(return_NC, anchor_NC, jnp.ones((2, 2), bool), "none")
        >>> step_NC.tolist(), peers_NC.tolist()
        ([[0.0, 1.0], [-1.0, 0.0]], [[False, True], [True, False]])
    """
    key_U, real_U = jnp.where(real_NC, anchor_NC, 0).reshape(-1), real_NC.reshape(-1)
    keys = {"group": key_U}
    step_U = standardise(return_NC.reshape(-1), keys, real_U, len(key_U), "group", std)
    peers_U = real_U & (key_count(key_U, real_U, len(key_U)) > 1)
    return step_U.reshape(return_NC.shape), peers_U.reshape(return_NC.shape)


def hierarchy(
    return_NC: jax.Array, anchor_NCH: jax.Array, real_NC: jax.Array, std: str, exponent: float
) -> jax.Array:
    """Returns HGPO's step advantages, the mean over k = 1..H of `against_state` by the last k
    observations, [N, C].

    The weights are k^exponent, so that peers with more of the same history count more. Depths at
    which a chunk has no peer are left out of its mean.

    Two chunks with the returns 1 and 0 share their last observation, but not the one before it. The
    second depth has no peers and is left out; a mean over both depths would be 1/4:

        >>> anchor_NCH = jnp.array([[[0, 0]], [[0, 1]]])
        >>> return_NC, real_NC = jnp.array([[1.0], [0.0]]), jnp.ones((2, 1), bool)
        >>> hierarchy(return_NC, anchor_NCH, real_NC, "none", 1.0).tolist()
        [[0.5], [-0.5]]
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
    outcome_N: jax.Array, root_N: jax.Array, node_NC: jax.Array, real_NC: jax.Array
) -> jax.Array:
    """Returns P(state after the chunk) - P(state before it), [N, C]; not masked.

    P is the mean outcome of the valid members that share the history up to a state; root_N: that of
    each member's group, which shares the beginning. From the last state that a trajectory shares
    with others on, every chunk has R - P of that state: nobody knows which of them made the
    difference. The differences up to there sum to R - P(root).

    Three members of a group did and saw t a b, t a c and t d e, and their outcomes are 1, 0 and 0:

        before_NC      shared_NC     last_N1   result
        1/3  1/2  1    yes yes no    1          1/6   1/2   1/2
        1/3  1/2  0    yes yes no    1          1/6  -1/2  -1/2
        1/3  0    0    yes no  no    0         -1/3  -1/3  -1/3

    The same, computed:

        >>> node_NC = jnp.array([[0, 0, 0], [0, 0, 1], [0, 2, 2]])
        >>> outcome_N, root_N = jnp.array([1.0, 0.0, 0.0]), jnp.full(3, 1 / 3)
        >>> for rise_C in along_tree(outcome_N, root_N, node_NC, jnp.ones((3, 3), bool)):
        ...     print(*(f"{float(rise):5.2f}" for rise in rise_C))
         0.17  0.50  0.50
         0.17 -0.50 -0.50
        -0.33 -0.33 -0.33
    """

    def of_column(node_N: jax.Array, real_N: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_N = jnp.where(real_N, node_N, 0)
        shared_N = real_N & (key_count(key_N, real_N, len(key_N)) > 1)
        return key_mean(outcome_N, key_N, real_N, len(key_N)), shared_N

    before_NC, shared_NC = jax.vmap(of_column, in_axes=1, out_axes=1)(node_NC, real_NC)
    before_NC, shared_NC = before_NC.at[:, 0].set(root_N), shared_NC.at[:, 0].set(True)
    last_N1 = shared_NC.sum(axis=1, keepdims=True) - 1  # who shares a history shares its beginning
    after_NC = jnp.roll(before_NC, -1, axis=1)
    rest_N1 = outcome_N[:, None] - jnp.take_along_axis(before_NC, last_N1, axis=1)
    forks_NC = jnp.arange(before_NC.shape[1])[None, :] < last_N1
    return jnp.where(forks_NC, after_NC - before_NC, rest_N1)


def token_returns(
    reward_BT: jax.Array, chunk_BT: jax.Array, segment_BT: jax.Array, gamma: float
) -> jax.Array:
    """Returns REINFORCE's A_t = sum_l gamma^l r_{t+l}, over the policy's tokens of the trajectory,
    float32 [B, T]; 0 elsewhere.

    The observation between the two chunks is no step of time:

        >>> reward_BT, chunk_BT = jnp.array([[0.0, 0.0, 0.0, 1.0]]), jnp.array([[0, 0, -1, 1]])
        >>> token_returns(reward_BT, chunk_BT, jnp.ones((1, 4), int), gamma=0.5).tolist()
        [[0.25, 0.5, 0.0, 1.0]]
    """
    zeros_BT = jnp.zeros_like(reward_BT)
    advantage_BT, _ = gae(zeros_BT, reward_BT, chunk_BT, segment_BT, gamma, lam=1.0)
    return advantage_BT


def scale_token_advantages(
    advantage_MBT: jax.Array,
    written_MBT: jax.Array,
    group_MBT: jax.Array,
    tag_G: jax.Array,
    hp: AdvantageHypers,
) -> jax.Array:
    """Applies `hp`'s mean and std over the step's policy tokens, then its clip. group_MBT and tag_G
    are in 0..G-1. REINFORCE++ (arXiv 2501.03262) uses the mean and std of the batch.

    written_MBT: the units that are compared; 0 elsewhere.

    By the batch's mean and std, 1 and 0 become 1 and -1; the third token was not written:

        >>> advantage_MBT = jnp.array([[[1.0, 0.0, 9.0]]])
        >>> written_MBT = jnp.array([[[True, True, False]]])
        >>> hp = AdvantageHypers("token_return", mean="batch", std="batch")
        >>> group_MBT, tag_G = jnp.zeros((1, 1, 3), int), jnp.array([0])
        >>> scaled_MBT = scale_token_advantages(advantage_MBT, written_MBT, group_MBT, tag_G, hp)
        >>> scaled_MBT.round(3).tolist()
        [[[1.0, -1.0, 0.0]]]
    """
    valid_U, group_U = written_MBT.reshape(-1), jnp.maximum(group_MBT.reshape(-1), 0)
    keys = {"group": group_U, "tag": tag_G[group_U], "batch": jnp.zeros_like(group_U)}
    advantage_U = standardise(advantage_MBT.reshape(-1), keys, valid_U, len(tag_G), hp.mean, hp.std)
    if hp.clip:
        advantage_U = jnp.clip(advantage_U, -hp.clip, hp.clip)
    return advantage_U.reshape(advantage_MBT.shape)
