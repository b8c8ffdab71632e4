"""Credit assignment: from the rewards of N trajectories to one advantage per chunk.

The arrays of `Rewards`:
    reward_NC: each chunk's own reward. Where only the outcome is rewarded, the last chunk has it.
    outcome_N: the sum of the trajectory's rewards.
    num_chunks_N: number of chunks of the trajectory. Its later columns are padding and may hold
        anything.
    group_N, tag_N: in 0..num_groups-1.
    valid_N: False where the episode failed for reasons of the system, so that its reward says
        nothing about the policy.
    anchor_NC: the first trajectory of the group, by its index in N, that had seen the same before
        this chunk.
    node_NC: the first trajectory of the group, by its index in N, that had done and seen the same
        before this chunk.
    tokens_NC: number of policy tokens that get the advantage of this chunk.
    anchor_NCH: for k = 1..H, the first chunk of the group, by its index in N x C, before which the
        last k observations were the same; its own index if there are fewer. H is
        `advantage.anchor_depth`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.algo.baselines import (
    against_history,
    against_state,
    along_tree,
    baseline,
    chunk_returns,
    divisor,
    hierarchy,
    key_mean,
    real_chunks,
    standardise,
)
from ale_jax.config.algo import AdvantageHypers


class Rewards(NamedTuple):
    """What N trajectories earned, as arrays, which the module's docstring describes.

    Two trajectories of one group, of 2 and 1 chunks; the second one failed:

        reward_NC     outcome_N   num_chunks_N   group_N   valid_N   real_NC
        0    1        1           2              0         True      True  True
        0    (any)    0           1              0         True      True  False
    """

    reward_NC: jax.Array
    outcome_N: jax.Array
    num_chunks_N: jax.Array
    group_N: jax.Array
    tag_N: jax.Array
    valid_N: jax.Array
    anchor_NC: jax.Array
    node_NC: jax.Array
    tokens_NC: jax.Array
    anchor_NCH: jax.Array | None = None

    @property
    def keys(self) -> dict[str, jax.Array]:
        zeros_N = jnp.zeros_like(self.group_N)
        return {"group": self.group_N, "tag": self.tag_N, "batch": zeros_N}

    @property
    def real_NC(self) -> jax.Array:
        return real_chunks(self.num_chunks_N, self.reward_NC.shape[1]) & self.valid_N[:, None]

    def with_failures_at(self, cost: float) -> Rewards:
        """Adds `cost` to the outcome and to the last chunk of episodes with an outcome <= 0."""
        malus_N = jnp.where(self.outcome_N <= 0.0, cost, 0.0)
        reward_NC = self.reward_NC + self.on_last_chunk(malus_N)
        return self._replace(outcome_N=self.outcome_N + malus_N, reward_NC=reward_NC)

    def on_last_chunk(self, x_N: jax.Array) -> jax.Array:
        """Puts x on each trajectory's last chunk, and 0 on the others, [N, C]."""
        last_NC = jnp.arange(self.reward_NC.shape[1])[None, :] == self.num_chunks_N[:, None] - 1
        return jnp.where(last_NC, x_N[:, None], 0.0)

    def reversed(self, x_NC: jax.Array) -> jax.Array:
        """Orders each trajectory's chunks from the last to the first, [N, C]; padding may hold
        anything."""
        from_end_NC = self.num_chunks_N[:, None] - 1 - jnp.arange(x_NC.shape[1])[None, :]
        return jnp.take_along_axis(x_NC, jnp.maximum(from_end_NC, 0), axis=1)


class Credit(NamedTuple):
    """The credit of each chunk.

    advantage_NC: float32; 0 on padding, on invalid trajectories, and everywhere if the estimator
    works on tokens. reward_NC: each chunk's own reward, including `failure_reward`.
    """

    advantage_NC: jax.Array
    reward_NC: jax.Array


def credit_chunks(rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers) -> Credit:
    """Returns the advantages by the estimator `hp.estimator`, clipped to +-`hp.clip` unless that is
    0, and then balanced as `hp.balance` says.

    A group of two, of 2 chunks and 1 chunk, with the outcomes 1 and 0. The group's mean is 1/2, and
    "chunk_return" discounts what differs from it once per chunk:

        >>> zeros_N = jnp.array([0, 0])
        >>> rewards = Rewards(
        ...     reward_NC=jnp.array([[0.0, 1.0], [0.0, 0.0]]),
        ...     outcome_N=jnp.array([1.0, 0.0]),
        ...     num_chunks_N=jnp.array([2, 1]),
        ...     group_N=zeros_N,
        ...     tag_N=zeros_N,
        ...     valid_N=jnp.array([True, True]),
        ...     anchor_NC=jnp.array([[0, 0], [0, 0]]),
        ...     node_NC=jnp.array([[0, 0], [0, 0]]),
        ...     tokens_NC=jnp.array([[3, 1], [2, 0]]),
        ... )
        >>> credit_chunks(rewards, 1, 0.5, AdvantageHypers("chunk_return")).advantage_NC.tolist()
        [[0.25, 0.5], [-0.5, 0.0]]
        >>> credit_chunks(rewards, 1, 0.5, AdvantageHypers("outcome")).advantage_NC.tolist()
        [[0.5, 0.5], [-0.5, 0.0]]
    """
    rewards = rewards.with_failures_at(hp.failure_reward)
    advantage_NC = _ESTIMATORS[hp.estimator](rewards, num_groups, gamma, hp)
    advantage_NC = jnp.where(rewards.real_NC, advantage_NC, 0.0)
    if hp.clip:
        advantage_NC = jnp.clip(advantage_NC, -hp.clip, hp.clip)
    if hp.balance == "group":
        advantage_NC = _balanced(advantage_NC, rewards, num_groups)
    return Credit(advantage_NC, rewards.reward_NC)


def _balanced(advantage_NC: jax.Array, rewards: Rewards, num_groups: int) -> jax.Array:
    """Scales the negative advantages of each group by min(1, P / N), where P and N are the sums of
    |A| over the policy tokens with A > 0 and A < 0.

    A group's mean makes the sum of A over trajectories 0, but not over tokens: where failures run
    to a limit, N is many times P, and a step mostly lowers the probability of what the policy
    writes, right or wrong. Nothing is scaled up. A group without a positive advantage (there is
    none if a mean of the group was subtracted) pushes nothing down either: P = 0.
    """

    def mass(side_NC: jax.Array) -> jax.Array:
        mass_N = (side_NC * rewards.tokens_NC.astype(side_NC.dtype)).sum(axis=1)
        # Means over the same members have the ratio of the sums.
        return key_mean(mass_N, rewards.group_N, rewards.valid_N, num_groups)

    up_N, down_N = mass(jnp.maximum(advantage_NC, 0.0)), mass(jnp.maximum(-advantage_NC, 0.0))
    heavier_N = down_N > up_N
    factor_N = jnp.where(heavier_N, up_N / jnp.where(heavier_N, down_N, 1.0), 1.0)
    return jnp.where(advantage_NC < 0.0, factor_N[:, None] * advantage_NC, advantage_NC)


def _chunk_return(
    rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers
) -> jax.Array:
    """Returns IPA's advantages, the discounted return of each chunk, centred as `hp.centring` says.

    "outcome": the return with R - b as the last chunk's reward, divided by the std of R. If only
    the outcome is rewarded, A_k = gamma^(K-k) (R - b): the baseline is subtracted before
    discounting. All chunks of a trajectory then have advantages of one sign, which are smaller for
    earlier chunks, and a group of equal outcomes has zero advantages. If the baseline were
    subtracted after discounting, gamma^(K-k) R - b would penalise the early chunks of every long
    success. The cost is that, with gamma < 1, the subtracted term depends on the trajectory's
    length. It is therefore part of the objective (the discounted, centred outcome) and not only a
    control variate. And a success by a detour is as good as the short way.

    "chunk", "distance": see `_centred_return`.
    """
    if hp.centring != "outcome":
        return _centred_return(rewards, num_groups, gamma, hp)
    baseline_N, divisor_N = _baseline_and_divisor(rewards, num_groups, hp)
    centred_NC = rewards.reward_NC - rewards.on_last_chunk(baseline_N)
    return_NC = chunk_returns(centred_NC, rewards.num_chunks_N, gamma)
    return return_NC / divisor_N[:, None]


def _centred_return(
    rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers
) -> jax.Array:
    """Returns G_k less the mean of G over the group's members at the same place, after the
    discount.

    The place is the chunk's index from the start ("chunk") or from the end ("distance"), and
    members without a chunk there are not compared: whoever is alone has advantage 0. By index, the
    members have had equally many chunks, so that what is subtracted is a control variate of Eq 7's
    return, and a detour lowers gamma^(K-k) R against the others. From the end, gamma^(K-k) is the
    same for all: only outcomes are compared, each among trajectories that are long enough.
    """
    return_NC = chunk_returns(rewards.reward_NC, rewards.num_chunks_N, gamma)
    from_end = hp.centring == "distance"
    placed_NC = rewards.reversed(return_NC) if from_end else return_NC

    def against_others(return_N: jax.Array, real_N: jax.Array) -> jax.Array:
        return return_N - baseline(return_N, rewards.keys, real_N, num_groups, hp.mean)

    columns = jax.vmap(against_others, in_axes=1, out_axes=1)
    centred_NC = columns(placed_NC, rewards.real_NC)
    return rewards.reversed(centred_NC) if from_end else centred_NC


def _outcome(rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers) -> jax.Array:
    """Returns (R - b) / std on all chunks: GRPO (arXiv 2402.03300) with the group's mean and std,
    Dr. GRPO (2503.20783) without the std, RLOO (2402.14740) with the mean of the other members."""
    baseline_N, divisor_N = _baseline_and_divisor(rewards, num_groups, hp)
    advantage_N = (rewards.outcome_N - baseline_N) / divisor_N
    return jnp.broadcast_to(advantage_N[:, None], rewards.reward_NC.shape)


def _baseline_and_divisor(
    rewards: Rewards, num_groups: int, hp: AdvantageHypers
) -> tuple[jax.Array, jax.Array]:
    of_N = (rewards.outcome_N, rewards.keys, rewards.valid_N, num_groups)
    return baseline(*of_N, hp.mean), divisor(*of_N, hp.std)


def _gigpo(rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers) -> jax.Array:
    """Returns the advantages of group-in-group (GiGPO, arXiv 2505.10978): the outcome relative to
    the group, plus `anchor_weight` times each chunk's discounted return relative to those of the
    group members that reached the same state (`anchor_depth`)."""
    episode_NC = _outcome(rewards, num_groups, gamma, hp)
    return_NC = chunk_returns(rewards.reward_NC, rewards.num_chunks_N, gamma)
    if hp.anchor_depth:
        assert rewards.anchor_NCH is not None, hp.anchor_depth
        anchor_NC = rewards.anchor_NCH[:, :, -1]
        step_NC, _ = against_state(return_NC, anchor_NC, rewards.real_NC, hp.std)
    else:
        step_NC = against_history(return_NC, rewards.anchor_NC, rewards.real_NC, hp.std)
    return episode_NC + hp.anchor_weight * step_NC


def _hgpo(rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers) -> jax.Array:
    """Returns the advantages of a hierarchy of groups (HGPO, arXiv 2602.22817): `_gigpo`, with
    states by the last 1 to `anchor_depth` observations."""
    episode_NC = _outcome(rewards, num_groups, gamma, hp)
    return_NC = chunk_returns(rewards.reward_NC, rewards.num_chunks_N, gamma)
    assert rewards.anchor_NCH is not None, hp.anchor_depth
    of_states = rewards.anchor_NCH, rewards.real_NC, hp.std, hp.anchor_exponent
    return episode_NC + hp.anchor_weight * hierarchy(return_NC, *of_states)


def _tree(rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers) -> jax.Array:
    """Returns what a chunk changed of the mean outcome of those who pass (`along_tree`): members of
    a group that share a history are a tree."""
    root_N, divisor_N = _baseline_and_divisor(rewards, num_groups, hp)
    rise_NC = along_tree(rewards.outcome_N, root_N, rewards.node_NC, rewards.real_NC)
    return rise_NC / divisor_N[:, None]


def _step(rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers) -> jax.Array:
    """Returns each chunk's discounted return, normalised over the chunks of its group, tag or
    batch."""
    num_chunks = rewards.reward_NC.shape[1]
    keys = {name: jnp.repeat(key_N, num_chunks) for name, key_N in rewards.keys.items()}
    return_U = chunk_returns(rewards.reward_NC, rewards.num_chunks_N, gamma).reshape(-1)
    real_U = rewards.real_NC.reshape(-1)
    step_U = standardise(return_U, keys, real_U, num_groups, hp.mean, hp.std)
    return step_U.reshape(rewards.reward_NC.shape)


def _later(rewards: Rewards, num_groups: int, gamma: float, hp: AdvantageHypers) -> jax.Array:
    """Returns zeros: token-level advantages are computed later, on packed batches."""
    return jnp.zeros_like(rewards.reward_NC)


Estimator = Callable[[Rewards, int, float, AdvantageHypers], jax.Array]

_ESTIMATORS: dict[str, Estimator] = {
    "chunk_return": _chunk_return,
    "outcome": _outcome,
    "gigpo": _gigpo,
    "hgpo": _hgpo,
    "tree": _tree,
    "step": _step,
    "token_return": _later,
    "gae": _later,
    "turn_gae": _later,
    "blended_turn_gae": _later,
}
