"""Attention Rhythm (arXiv 2510.13554): more credit for the tokens at which the policy decides.

Two patterns in a trajectory's self-attention indicate a decision. Where short-range heads suddenly
attend far back, the policy plans what comes next (WAAD, averaged over the local heads). A token
that long-range heads attend to later is an anchor (FAI, averaged over the global heads). Both are
measured by `ale_jax.model.attention_credit`; this module converts them to a factor on the
advantage.

The paper has one prompt and one response. Here the response is everything that the policy sampled
in a trajectory (`chunk_BT >= 0`); the observations in between are attended to, but are not part of
the response. Everything is computed per trajectory, so that neither packing nor microbatches change
it. Only the control, credit "random", draws by the token's place in its batch.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.attention_credit import AttentionCreditHypers


class AttentionStatistics(NamedTuple):
    """What the policy's attention shows of each token, float32 [B, T].

    waad_BT: how far the local heads look back from it (in tokens, at most W).
    fai_BT: the attention that it later receives from the global heads.
    delta_BT: how much WAAD changes from it to the next token.
    """

    waad_BT: jax.Array
    fai_BT: jax.Array
    delta_BT: jax.Array


def trajectory_statistics(
    distance_BXT: jax.Array,
    waad_BXT: jax.Array,
    fai_BXT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    head_share: float,
    num_segments: int,
) -> AttentionStatistics:
    """Averages each head's numbers over the local and the global heads of each trajectory.

    distance_BXT: mean distance that a head looks back from each token. Its mean over the response
    is d in the paper. The share of heads with the smallest d are local, and the share with the
    largest d are global (at least one each). WAAD and FAI are linear in the attention, so their
    average over heads equals their value for the averaged attention.

    Of two heads, the first looks one token back and is local, and the second one is global:

        >>> distance_BXT = jnp.array([[[1.0, 1.0], [4.0, 6.0]]])
        >>> fai_BXT = jnp.array([[[0.125, 0.75], [0.5, 0.25]]])
        >>> args = distance_BXT, distance_BXT, fai_BXT, jnp.array([[0, 0]]), jnp.array([[1, 1]])
        >>> found = trajectory_statistics(*args, head_share=0.5, num_segments=1)
        >>> found.waad_BT.tolist(), found.fai_BT.tolist(), found.delta_BT.tolist()
        ([[1.0, 1.0]], [[0.5, 0.25]], [[0.0, 0.0]])
    """
    response_BT = jnp.where(chunk_BT >= 0, segment_BT, 0)
    response_BTJ = response_BT[:, :, None] == jnp.arange(1, num_segments + 1)[None, None, :]
    # The sum has distances up to the row's length as its terms. The default matmul precision of a
    # TPU would round them so much that heads swap ranks.
    total_BXJ = jnp.einsum(
        "bxt,btj->bxj", distance_BXT, response_BTJ.astype(jnp.float32), precision="highest"
    )
    size_BJ = response_BTJ.sum(axis=1, dtype=jnp.float32)
    mean_BXJ = total_BXJ / jnp.maximum(size_BJ, 1.0)[:, None, :]
    rank_BXJ = jnp.argsort(jnp.argsort(mean_BXJ, axis=1), axis=1)
    X = distance_BXT.shape[1]
    # No head is both local and global, unless there is only one head.
    count = max(1, min(round(head_share * X), X // 2))
    own_B1T = jnp.clip(segment_BT - 1, 0, num_segments - 1)[:, None, :]

    def average(x_BXT: jax.Array, chosen_BXJ: jax.Array) -> jax.Array:
        chosen_BXT = jnp.take_along_axis(chosen_BXJ, own_B1T, axis=2)
        return jnp.where(chosen_BXT, x_BXT, 0.0).sum(axis=1) / count

    waad_BT = average(waad_BXT, rank_BXJ < count)
    fai_BT = average(fai_BXT, rank_BXJ >= X - count)
    return AttentionStatistics(waad_BT, fai_BT, waad_change(waad_BT, chunk_BT))


def waad_change(waad_BT: jax.Array, chunk_BT: jax.Array) -> jax.Array:
    """Returns Delta_t = |WAAD_t - WAAD_(t+1)|, float32 [B, T]; 0 on a chunk's last token, since the
    policy did not write the next one.

        >>> waad_change(jnp.array([[9.0, 4.0, 6.0, 1.0]]), jnp.array([[0, 0, -1, 1]])).tolist()
        [[5.0, 0.0, 0.0, 0.0]]
    """
    next_chunk_BT = jnp.pad(chunk_BT[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    inside_BT = (chunk_BT >= 0) & (next_chunk_BT == chunk_BT)
    return jnp.where(inside_BT, jnp.abs(waad_BT - jnp.roll(waad_BT, -1, axis=1)), 0.0)


def response_ranks(
    x_BT: jax.Array, chunk_BT: jax.Array, segment_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the rank of each token's value within its response, and the number of tokens in that
    response, both int [B, T].

    Rank 0 is the largest value; of equal values the earlier token ranks first. Tokens outside every
    response are ranked among themselves, per row.

        >>> x_BT, chunk_BT = jnp.array([[9.0, 1.0, 3.0, 2.0]]), jnp.array([[-1, 0, 0, 1]])
        >>> rank_BT, size_BT = response_ranks(x_BT, chunk_BT, jnp.ones((1, 4), int))
        >>> rank_BT.tolist(), size_BT.tolist()
        ([[0, 2, 0, 1]], [[1, 3, 3, 3]])
    """
    response_BT = jnp.where(chunk_BT >= 0, segment_BT, 0)
    order_BT = jnp.lexsort((-x_BT, response_BT), axis=1)
    sorted_BT = jnp.take_along_axis(response_BT, order_BT, axis=1)
    place_BT = jnp.argsort(order_BT, axis=1)
    first_BT, end_BT = (
        jax.vmap(
            lambda ordered_T, wanted_T, side=side: jnp.searchsorted(ordered_T, wanted_T, side)
        )(sorted_BT, response_BT)
        for side in ("left", "right")
    )
    return place_BT - first_BT, end_BT - first_BT


def _count(share: float, size_BT: jax.Array) -> jax.Array:
    """Returns `share` of `size_BT` tokens, rounded to the nearest integer."""
    return jnp.round(share * size_BT.astype(jnp.float32)).astype(jnp.int32)


def top_tokens(
    x_BT: jax.Array, chunk_BT: jax.Array, segment_BT: jax.Array, share: float
) -> jax.Array:
    """Marks the share of each response's tokens with the largest values, at least one, bool [B, T]
    (TopQ).

    Tokens with the value 0 are never chosen, so that nothing is chosen where nothing was measured.
    Of three tokens that the policy wrote, a share of 0.34 is one:

        >>> x_BT, chunk_BT = jnp.array([[9.0, 1.0, 3.0, 2.0]]), jnp.array([[-1, 0, 0, 1]])
        >>> top_tokens(x_BT, chunk_BT, jnp.ones((1, 4), int), 0.34).tolist()
        [[False, False, True, False]]
    """
    rank_BT, size_BT = response_ranks(x_BT, chunk_BT, segment_BT)
    count_BT = jnp.maximum(_count(share, size_BT), 1)
    return (chunk_BT >= 0) & (rank_BT < count_BT) & (x_BT > 0.0)


def credit_factor(
    statistics: AttentionStatistics,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    hp: AttentionCreditHypers,
    key: jax.Array,
) -> jax.Array:
    """Returns gamma_t, the factor on each token's positive advantage, float32 [B, T]; it is 1
    except on the chosen tokens. Only the credit "random" reads `key`.

    With "local", the token after which WAAD changes most has its advantage amplified:

        >>> chunk_BT, delta_BT = jnp.zeros((1, 3), int), jnp.array([[1.0, 4.0, 0.0]])
        >>> hp = AttentionCreditHypers("local", top_share=0.34, amplification=1.5)
        >>> statistics = AttentionStatistics(delta_BT, delta_BT, delta_BT)
        >>> credit_factor(statistics, chunk_BT, chunk_BT + 1, hp, jax.random.key(0)).tolist()
        [[1.0, 1.5, 1.0]]
    """

    def top(x_BT: jax.Array) -> jax.Array:
        return top_tokens(x_BT, chunk_BT, segment_BT, hp.top_share)

    def coupled() -> jax.Array:
        anchor_BT, planned_BT = top(statistics.fai_BT), top(statistics.delta_BT)
        rank_BT, size_BT = response_ranks(statistics.waad_BT, chunk_BT, segment_BT)
        near_BT = rank_BT >= size_BT - _count(hp.dominated_share, size_BT)
        return coupled_share(
            anchor_BT & near_BT,
            anchor_BT & ~near_BT,
            jnp.where(planned_BT, statistics.delta_BT, 0.0),
            chunk_BT,
            segment_BT,
            hp.introduction_tokens,
            hp.introduction_share,
        )

    share_BT = {
        "none": lambda: jnp.zeros(chunk_BT.shape),
        "local": lambda: top(statistics.delta_BT),
        "global": lambda: top(statistics.fai_BT),
        "random": lambda: top(jax.random.uniform(key, chunk_BT.shape, minval=0.5)),  # never 0
        "coupled": coupled,
    }[hp.credit]()
    return 1.0 + (hp.amplification - 1.0) * share_BT.astype(jnp.float32)


def coupled_share(
    near_anchor_BT: jax.Array,
    far_anchor_BT: jax.Array,
    delta_BT: jax.Array,
    chunk_BT: jax.Array,
    segment_BT: jax.Array,
    k: int,
    alpha: float,
) -> jax.Array:
    """Returns each token's share of the bonus by Eq 18, 1[anchor not in D] + (1-alpha) 1[D] + alpha
    1[intro], float32 [B, T].

    An anchor with a low WAAD (near) is dominated, and therefore in D, if one of the k tokens before
    it in its chunk has a Delta of at least tau_Delta: the anchor follows from what was planned
    there. Of these tokens, the one with the largest Delta (the nearest if several are equal) is its
    introduction. delta_BT: 0 where Delta is below tau_Delta. The paper does not state tau_Delta;
    here it is the smallest Delta of the tokens that "local" chooses, so that only those introduce
    an anchor.

    Token 2 is near, and one of the two tokens before it planned something: with alpha = 1/4 it
    keeps 3/4, and its introduction gets 1/4. Token 3 is far, and keeps everything:

        >>> near_BT, far_BT = (jnp.array([[t == n for t in range(4)]]) for n in (2, 3))
        >>> delta_BT, chunk_BT = jnp.array([[0.0, 7.0, 0.0, 0.0]]), jnp.zeros((1, 4), int)
        >>> coupled_share(near_BT, far_BT, delta_BT, chunk_BT, chunk_BT + 1, 2, 0.25).tolist()
        [[0.0, 0.25, 0.75, 1.0]]
    """
    # After repacking, chunks of different trajectories in a row can have the same number.
    unit_BT = jnp.where(chunk_BT >= 0, chunk_BT + chunk_BT.shape[1] * segment_BT, -1)
    before_kBT = jnp.stack([_moved(delta_BT, unit_BT, step) for step in range(1, k + 1)])
    dominated_BT = near_anchor_BT & (before_kBT.max(axis=0) > 0.0)
    nearest_BT = jnp.argmax(before_kBT, axis=0) + 1
    introduces_BT = jnp.zeros_like(dominated_BT)
    for step in range(1, k + 1):
        from_here_BT = dominated_BT & (nearest_BT == step)
        introduces_BT |= jnp.pad(from_here_BT[:, step:], ((0, 0), (0, step)))
    free_BT = far_anchor_BT | (near_anchor_BT & ~dominated_BT)
    return jnp.where(free_BT, 1.0, jnp.where(dominated_BT, 1.0 - alpha, 0.0)) + jnp.where(
        introduces_BT, alpha, 0.0
    )


def _moved(x_BT: jax.Array, unit_BT: jax.Array, step: int) -> jax.Array:
    """Returns the value `step` tokens earlier; 0 unless that token is in the same unit, from 0."""
    pad = ((0, 0), (step, 0))
    T = x_BT.shape[1]
    earlier_BT = jnp.pad(x_BT, pad)[:, :T]
    unit_then_BT = jnp.pad(unit_BT, pad, constant_values=-1)[:, :T]
    return jnp.where((unit_BT >= 0) & (unit_then_BT == unit_BT), earlier_BT, 0.0)


def amplify(advantage_BT: jax.Array | np.ndarray, factor_BT: jax.Array | np.ndarray) -> jax.Array:
    """Returns gamma_t A_t where A_t >= 0, and A_t elsewhere, because a stronger push away from one
    decision does not teach another one. The factor has no gradient.

        >>> amplify(jnp.array([2.0, -2.0]), jnp.array([1.5, 1.5])).tolist()
        [3.0, -2.0]
    """
    factor_BT = jax.lax.stop_gradient(factor_BT)
    return jnp.where(advantage_BT >= 0.0, factor_BT * advantage_BT, advantage_BT)
