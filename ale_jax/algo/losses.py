"""Per-token losses, and the denominator that their sum is divided by.

A policy loss is a function (Tokens, LossHypers) -> (loss_BT, clipped_BT), to be minimised. r is the
ratio pi / pi_old at the level of the hyperparameters, A is the advantage, and sg() stops the
gradient. clipped_BT marks where the bound of the ratio is active, for the metrics. `LOSSES` in
`ale_jax.config.algo` lists which hyperparameters each loss reads.

How hard each loss pushes log pi of a token, -dL / d log pi, at the ratios 1/2, 1 and 2, first for
A = 1 and then for A = -1:

    >>> clip, cap, tau = {"clip_low": 0.2, "clip_high": 0.2}, {"ratio_cap": 1.0}, {"tau": 1.0}
    >>> hypers = {"vanilla": {}, "ppo": clip, "cispo": clip, "tis": cap, "topr": cap, "kimi": tau}
    >>> hypers["sapo"] = {"tau": 1.0, "tau_negative": 1.0}
    >>> def push(kind, advantage, ratio):
    ...     def loss(logp):  # pi_old is 1 here
    ...         token = Tokens(logp, logp, jnp.array(advantage))
    ...         return TOKEN_LOSSES[kind](token, LossHypers(kind, **hypers[kind]))[0]
    ...     return 0.0 - float(jax.grad(loss)(jnp.log(ratio)))
    >>> for kind in hypers:
    ...     pushes = [push(kind, a, r) for a in (1.0, -1.0) for r in (0.5, 1.0, 2.0)]
    ...     print(f"{kind:8}", *(f"{each:5.2f}" for each in pushes))
    vanilla   1.00  1.00  1.00 -1.00 -1.00 -1.00
    ppo       0.50  1.00  0.00  0.00 -1.00 -2.00
    cispo     0.80  1.00  1.20 -0.80 -1.00 -1.20
    tis       0.50  1.00  1.00 -0.50 -1.00 -1.00
    topr      1.00  1.00  1.00 -0.50 -1.00 -1.00
    kimi      1.69  1.00  0.31 -0.31 -1.00 -1.69
    sapo      0.47  1.00  1.57 -0.47 -1.00 -1.57

Cross entropy is on tokens that the policy did not sample, beside its own loss: experts'
demonstrations (imitation) and what the environment answered (observations). There, s_t is the share
of token t in its unit, as in `ale_jax.algo.policy_loss`, and values of log pi at other tokens have
no influence, even if they are nan.

The supervised loss is Eq 1 of arXiv 2512.24873. The loss denominator is counted on the host over
the whole step, before it is cut into microbatches, so that neither packing nor accumulation changes
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.ratio import exp_log_ratio, one_over_count
from ale_jax.config.loss import AGGREGATIONS, LossHypers
from ale_jax.records import OUTSIDE, Batch

Arrays = Mapping[str, jax.Array]  # of a `Batch`, by name


class Tokens(NamedTuple):
    """The tokens as a policy loss reads them. Outside policy tokens the values are finite and have
    no effect.

    log_ratio_BT: from `ale_jax.algo.ratio.log_ratio`. advantage_BT: A; a token is positive (in T+,
    Eq 9 of arXiv 2512.24873) if A > 0.
    """

    logp_BT: jax.Array
    log_ratio_BT: jax.Array
    advantage_BT: jax.Array

    @property
    def positive_BT(self) -> jax.Array:
        return self.advantage_BT > 0.0

    @property
    def weight_BT(self) -> jax.Array:
        """sg(r): a ratio that weights a gradient must not itself be optimised."""
        return exp_log_ratio(jax.lax.stop_gradient(self.log_ratio_BT))


def _none(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns 0: only what is beside the policy loss is learned from."""
    return jnp.zeros_like(tokens.logp_BT), jnp.zeros(tokens.logp_BT.shape, bool)


def _vanilla(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns -A log pi: REINFORCE, without a ratio."""
    never_BT = jnp.zeros(tokens.logp_BT.shape, bool)
    return -tokens.advantage_BT * tokens.logp_BT, never_BT


def _ppo(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns -min(r A, clip(r, 1 - low, 1 + high) A) (arXiv 1707.06347; low and high apart:
    2503.14476).

    dual_clip c: where A < 0 the objective is at least c A (arXiv 1912.09729), so that the effect of
    a token with a large ratio is bounded. At the sequence level this is GSPO.
    """
    ratio_BT, advantage_BT = exp_log_ratio(tokens.log_ratio_BT), tokens.advantage_BT
    clipped_BT = jnp.clip(ratio_BT, 1.0 - hp.clip_low, 1.0 + hp.clip_high)
    gain_BT = jnp.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
    acts_BT = clipped_BT * advantage_BT < ratio_BT * advantage_BT
    if hp.dual_clip:
        least_BT = hp.dual_clip * advantage_BT
        bounded_BT = (advantage_BT < 0.0) & (gain_BT < least_BT)
        gain_BT, acts_BT = jnp.where(bounded_BT, least_BT, gain_BT), acts_BT | bounded_BT
    return -gain_BT, acts_BT


# The ratios of an on-policy step are 1 but for rounding, and a cap of 1 does not clip these.
ROUNDING = 1e-4


def _is_capped(ratio_BT: jax.Array, hp: LossHypers) -> jax.Array:
    return ratio_BT > hp.ratio_cap * (1.0 + ROUNDING)


def _tis(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns -sg(min(r, cap)) A log pi, truncated importance sampling (arXiv 2512.24873, Eq 4)."""
    ratio_BT = tokens.weight_BT
    weight_BT = jnp.minimum(ratio_BT, hp.ratio_cap)
    return -(weight_BT * tokens.advantage_BT) * tokens.logp_BT, _is_capped(ratio_BT, hp)


def _topr(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns -A log pi where A > 0, and TIS elsewhere: tapered off-policy REINFORCE (arXiv
    2503.14286).

    A success keeps its full weight when the policy has moved away from it. clip_low, clip_high,
    which are not in the paper: a success that has become 1 + clip_high times as likely, or a
    failure that has become 1 - clip_low times as likely, is not pushed any further, so that a batch
    can be used several times.

    With a ratio per chunk, discounted returns per chunk and a mask on chunks this is IPA (Eq 9).
    """
    ratio_BT, positive_BT = tokens.weight_BT, tokens.positive_BT
    weight_BT = jnp.where(positive_BT, 1.0, jnp.minimum(ratio_BT, hp.ratio_cap))
    acts_BT = ~positive_BT & _is_capped(ratio_BT, hp)
    if hp.clip_low or hp.clip_high:
        low = 1.0 - hp.clip_low if hp.clip_low else -math.inf
        high = 1.0 + hp.clip_high if hp.clip_high else math.inf
        learned_BT = jnp.where(positive_BT, ratio_BT > high, ratio_BT < low)
        weight_BT, acts_BT = jnp.where(learned_BT, 0.0, weight_BT), acts_BT | learned_BT
    return -(weight_BT * tokens.advantage_BT) * tokens.logp_BT, acts_BT


def _cispo(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns -sg(clip(r, 1 - low, 1 + high)) A log pi (arXiv 2506.13585). The gradient of clipped
    tokens is bounded, not removed."""
    ratio_BT = tokens.weight_BT
    weight_BT = jnp.clip(ratio_BT, 1.0 - hp.clip_low, 1.0 + hp.clip_high)
    return -(weight_BT * tokens.advantage_BT) * tokens.logp_BT, weight_BT != ratio_BT


def _kimi(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns -A log pi + tau/2 (log r)^2 (arXiv 2501.12599). The square keeps the policy near
    pi_old; it has a gradient even where A is 0."""
    never_BT = jnp.zeros(tokens.logp_BT.shape, bool)
    pull_BT = 0.5 * hp.tau * tokens.log_ratio_BT**2
    return pull_BT - tokens.advantage_BT * tokens.logp_BT, never_BT


def _sapo(tokens: Tokens, hp: LossHypers) -> tuple[jax.Array, jax.Array]:
    """Returns -f(r) A with f(r) = 4/tau sigmoid(tau (r - 1)) (SAPO, arXiv 2511.20347); tau is
    `tau_negative` where A is not positive.

    The gradient of f is 1 at r = 1 and falls off smoothly on both sides, where a clip is flat on
    one side and has no effect within its range. As tau goes to 0, f(r) - f(1) is r - 1; with a
    large tau, only tokens at r = 1 teach. No bound is ever reached, so none is marked.
    """
    never_BT = jnp.zeros(tokens.logp_BT.shape, bool)
    tau_BT = jnp.where(tokens.positive_BT, hp.tau, hp.tau_negative)
    gate_BT = jax.nn.sigmoid(tau_BT * (exp_log_ratio(tokens.log_ratio_BT) - 1.0)) * 4.0 / tau_BT
    return -gate_BT * tokens.advantage_BT, never_BT


# decoupled_ppo (arXiv 2110.00641) is PPO relative to the proximal policy, weighted by
# sg(min(pi_prox / pi_old, cap)); `policy_loss` applies this weight.
TokenLoss = Callable[[Tokens, LossHypers], tuple[jax.Array, jax.Array]]

TOKEN_LOSSES: dict[str, TokenLoss] = {
    "none": _none,
    "vanilla": _vanilla,
    "ppo": _ppo,
    "decoupled_ppo": _ppo,
    "tis": _tis,
    "topr": _topr,
    "cispo": _cispo,
    "kimi": _kimi,
    "sapo": _sapo,
}


def imitation(logp_BT: jax.Array, batch: Arrays, num_chunks: int, hp: LossHypers) -> jax.Array:
    """Returns -sum_t s_t i_t log pi(t), a scalar: the imitation term of Eq 10 of arXiv 2512.24873,
    before 1/Z. i: imitate_BT.

        >>> batch = {"imitate_BT": jnp.array([[0.0, 0.5, 0.5]]), "segment_BT": jnp.ones((1, 3))}
        >>> float(imitation(jnp.array([[-9.0, -1.0, -3.0]]), batch, 1, LossHypers()))
        2.0
    """
    imitated_BT = batch["imitate_BT"] != 0.0
    loss_BT = -batch["imitate_BT"] * jnp.where(imitated_BT, logp_BT, 0.0)
    return _means(loss_BT, imitated_BT, batch, num_chunks, hp.aggregation).sum()


def observation_mask(chunk_BT: jax.Array, segment_BT: jax.Array) -> jax.Array:
    """Marks the tokens that the environment wrote after the first policy token of the same
    trajectory, bool [B, T].

    The first prompt, prefix turns, replies without credit and padding are not among them. What a
    chat template puts around an observation is.

        >>> chunk_BT, segment_BT = jnp.array([[-1, 0, -1, 1, -1]]), jnp.array([[1, 1, 1, 1, 0]])
        >>> observation_mask(chunk_BT, segment_BT).tolist()
        [[False, False, True, False, False]]
    """
    action_mask_BT = chunk_BT >= 0
    # The trajectory that the policy wrote in last; they are numbered in the order of their row.
    acted_BT = jax.lax.cummax(jnp.where(action_mask_BT, segment_BT, 0), axis=1)
    return (chunk_BT == OUTSIDE) & (segment_BT > 0) & (acted_BT == segment_BT)


def observations(
    logp_BT: jax.Array, batch: Arrays, num_chunks: int, hp: LossHypers
) -> tuple[jax.Array | float, dict[str, jax.Array]]:
    """Returns -sum_t s_t o_t log pi(t), the second term of ECHO (arXiv 2605.24517), before its
    weight and 1/Z, and sums for the metrics. o: `observation_mask`. Nothing is computed if the
    weight is 0.

    The paper takes a mean over the observation tokens. Here Z is that of all other terms, so the
    weight compares a token of an observation with one of the policy, however many there are.

    One token of an observation follows the policy's first one:

        >>> batch = {"chunk_BT": jnp.array([[-1, 0, -1, 1]]), "segment_BT": jnp.ones((1, 4), int)}
        >>> hp, logp_BT = LossHypers(observation_weight=0.05), jnp.array([[-9.0, -1.0, -3.0, -2.0]])
        >>> float(observations(logp_BT, batch, num_chunks=2, hp=hp)[0])
        3.0
    """
    if not hp.observation_weight:
        return 0.0, {}
    observed_BT = observation_mask(batch["chunk_BT"], batch["segment_BT"])
    nll_BT = -jnp.where(observed_BT, logp_BT, 0.0)
    sums = {"observation_tokens": observed_BT.sum(), "observation_nll": nll_BT.sum()}
    means_BT = _means(nll_BT, observed_BT, batch, num_chunks, hp.aggregation)
    return means_BT.sum(), sums


def _means(
    loss_BT: jax.Array,
    counted_BT: jax.Array,
    batch: Arrays,
    num_chunks: int,
    aggregation: str,
) -> jax.Array:
    """Returns the losses of tokens outside all chunks, times s: 1, or 1 / the number of counted
    tokens in the trajectory ("trajectory_means", times its weight) or between two tokens that are
    not counted ("chunk_means")."""
    if aggregation == "trajectory_means":
        id_BT = jnp.where(counted_BT, batch["segment_BT"] - 1, -1)
        return weighted(loss_BT * one_over_count(id_BT, num_chunks), batch)
    if aggregation == "chunk_means":
        return loss_BT * _one_over_run(counted_BT)
    return loss_BT


def weighted(mean_BT: jax.Array, batch: Arrays) -> jax.Array:
    """Returns the shares of tokens in the means of trajectories, times weight_BT: that of the
    trajectory among those of its episode."""
    weight_BT = batch.get("weight_BT")
    return mean_BT if weight_BT is None else mean_BT * weight_BT


def _one_over_run(counted_BT: jax.Array) -> jax.Array:
    """Returns 1 / (length of the run of counted tokens around each); 0 where a token is not
    counted."""
    length = counted_BT.shape[1]
    place_BT = jnp.broadcast_to(jnp.arange(length)[None, :], counted_BT.shape)
    before_BT = jax.lax.cummax(jnp.where(counted_BT, -1, place_BT), axis=1)
    after_BT = jax.lax.cummin(jnp.where(counted_BT, length, place_BT), axis=1, reverse=True)
    size_BT = jnp.maximum(after_BT - before_BT - 1, 1).astype(jnp.float32)
    return jnp.where(counted_BT, 1.0 / size_BT, 0.0)


def sft_loss(
    logp_BT: jax.Array, chunk_BT: jax.Array, loss_denominator: jax.Array | float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the supervised loss -(1/Z) sum_k m_k log pi(c_k | s_k), and sums for the metrics.

    m_k = m_err * m_task is encoded in `chunk_BT`: the tokens of a chunk with m_k = 0 are in no
    chunk (-1), like those of observations, but they stay in the context s of later chunks.
    `loss_denominator` is Z = sum_k m_k |c_k|, counted over the whole step; it is at least 1, which
    replaces the paper's epsilon.
    Entry t of `logp_BT` belongs to token t itself.

    Of three tokens the first is given, and the others have the probabilities 1/2 and 1/8:

        >>> logp_BT = jnp.log2(jnp.array([[0.3, 0.5, 0.125]]))  # in bits, to be read easily
        >>> float(sft_loss(logp_BT, jnp.array([[-1, 0, 0]]), loss_denominator=2)[0])
        2.0
    """
    assert logp_BT.shape == chunk_BT.shape, (logp_BT.shape, chunk_BT.shape)
    action_mask_BT = chunk_BT >= 0
    nll = -jnp.where(action_mask_BT, logp_BT, 0.0).sum()
    return nll / loss_denominator, {"tokens": action_mask_BT.sum().astype(jnp.float32), "nll": nll}


def count_loss_denominator(
    batches: Sequence[Batch],
    aggregation: str,
    constant_tokens: int = 0,
    count_episodes: bool = False,
) -> np.float32:
    """Counts the policy tokens, chunks or trajectories in all microbatches of one step; see
    `LossHypers.aggregation`. Only trajectories in which the policy wrote something are counted.

    count_episodes: the conversations of an episode, which have its group and member, are one
    trajectory together.

    At least 1, so that a step without policy tokens has the loss 0 and not nan. With several hosts,
    count over the batches of all of them. Relies on the packer's ids: the chunks of a row are
    numbered from 0 without gaps.

    A row of two trajectories, with chunks of 2 and 1 tokens in the first and of 1 in the second, is
    4 for "tokens", 3 for "chunks" and "chunk_means", 2 for "trajectories" and "trajectory_means",
    and 2 n for "constant" with `constant_tokens` n:

        segment_BT   1  1  1  1  1  2  2  0
        chunk_BT    -1  0  0 -1  1 -1  2 -1
    """
    assert aggregation in AGGREGATIONS, aggregation
    if aggregation == "tokens":
        count = sum(int((b.chunk_BT >= 0).sum()) for b in batches)
    elif aggregation in ("chunks", "chunk_means"):
        count = sum(int((b.chunk_BT.max(axis=1) + 1).sum()) for b in batches)
    else:
        units = _episodes(batches) if count_episodes else sum(map(_trajectories, batches))
        count = units * (constant_tokens or 1)
    return np.float32(max(count, 1))


def _trajectories(batch: Batch) -> int:
    return sum(
        len(np.unique(segment_T[chunk_T >= 0]))
        for segment_T, chunk_T in zip(batch.segment_BT, batch.chunk_BT, strict=True)
    )


def _episodes(batches: Sequence[Batch]) -> int:
    """Counts the episodes, whose conversations may be in several batches."""
    found: set[tuple[int, int]] = set()
    for batch in batches:
        written_BT = batch.chunk_BT >= 0
        groups, members = batch.group_BT[written_BT], batch.member_BT[written_BT]
        found.update(zip(groups.tolist(), members.tolist()))
    return len(found)
