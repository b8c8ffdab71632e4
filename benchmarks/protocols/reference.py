"""Published algorithms, written out: one trajectory at a time, without packing, microbatches or
masks, with the sums, standard deviations and Adam of the papers.

Nothing here is shared with the learner but the model's own forward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.model.params import Params
from ale_jax.model.policy import hidden_states, score_tokens, token_values

STD_FLOOR = 1e-6  # added to a standard deviation that advantages are divided by


@dataclasses.dataclass(frozen=True)
class Played:
    """A trajectory of T tokens. old_T: log-probabilities of the policy that wrote those of the
    tokens that `written_T` marks. reward: of the whole episode, earned with the last token."""

    group: int
    ids_T: np.ndarray
    written_T: np.ndarray
    old_T: np.ndarray
    reward: float


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a published algorithm learns from a batch.

    preset: of `configs/algorithms.py`. epochs, minibatches: of a batch, by whole groups. groups,
    members: of a batch. clip_low, clip_high: range of the ratio; dual_clip: bound of the factor on
    a negative advantage, 0: none. by_sequence: one ratio for the whole reply (GSPO), and the mean
    over its tokens. critic: whether advantages are GAE on values, normalised over the batch.
    """

    preset: str
    epochs: int
    minibatches: int
    groups: int = 8
    members: int = 4
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    by_sequence: bool = False
    critic: bool = False


class Adam:
    """Adam with the gradient's norm clipped (1412.6980, Algorithm 1), in float64."""

    def __init__(self, weights: Params, hp: OptimizerHypers):
        self._hp, self._count = hp, 0
        self._first = jax.tree.map(lambda w: np.zeros(w.shape), weights)
        self._second = jax.tree.map(lambda w: np.zeros(w.shape), weights)

    def update(self, weights: Params, gradient: Params) -> Params:
        hp, squares = self._hp, [np.sum(g**2) for g in jax.tree.leaves(gradient)]
        scale = min(1.0, hp.clip_norm / float(np.sqrt(np.sum(squares))))
        self._count += 1
        rates = [1.0 - decay**self._count for decay in (hp.b1, hp.b2)]

        def mean(decay: float, old: Any, new: Any) -> Any:
            return jax.tree.map(lambda m, g: decay * m + (1.0 - decay) * g, old, new)

        gradient = jax.tree.map(lambda g: scale * g, gradient)
        self._first = mean(hp.b1, self._first, gradient)
        self._second = mean(hp.b2, self._second, jax.tree.map(np.square, gradient))

        def moved(w: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
            step = hp.learning_rate * (first / rates[0]) / (np.sqrt(second / rates[1]) + 1e-8)
            return (w - step).astype(np.float32)

        return jax.tree.map(moved, weights, self._first, self._second)


class Reference:
    """A policy and, if the protocol has one, a critic, as the protocol trains them."""

    def __init__(self, protocol: Protocol, shape: PolicyShape, hp: OptimizerHypers, lam: float):
        self._protocol, self._shape, self._hp, self._lam = protocol, shape, hp, lam
        self._policy_gradient = jax.jit(jax.grad(self._policy_loss))
        self._value_gradient = jax.jit(jax.grad(self._value_loss))
        self._values = jax.jit(self._values_T)
        self.logp = jax.jit(self._logp_T)

    def begin(self, policy: Params, critic: Params | None) -> None:
        self.policy, self.critic = map(_on_host, (policy, critic))
        self._adam = Adam(self.policy, self._hp)
        self._critic_adam = Adam(self.critic, self._hp)

    def learn(self, batch: Sequence[Played]) -> None:
        """Makes all updates of one batch."""
        protocol = self._protocol
        advantages = self._advantages(batch)
        returns = [np.where(one.written_T, one.reward, 0.0) for one in batch]  # gamma is 1
        for share in _shares(batch, protocol):
            size = sum(1 if protocol.by_sequence else batch[n].written_T.sum() for n in share)
            found = [
                self._policy_gradient(self.policy, *_of(batch[n]), advantages[n]) for n in share
            ]
            self.policy = self._adam.update(self.policy, _sum(found, size))
        for share in _shares(batch, protocol) if protocol.critic else ():
            size = sum(batch[n].written_T.sum() for n in share)
            found = [
                self._value_gradient(self.critic, *_of(batch[n])[:2], returns[n]) for n in share
            ]
            self.critic = self._critic_adam.update(self.critic, _sum(found, size))

    def _advantages(self, batch: Sequence[Played]) -> list[np.ndarray]:
        if self._protocol.critic:
            raw = [self._gae(one) for one in batch]
            every = np.concatenate([a[one.written_T] for a, one in zip(raw, batch, strict=True)])
            return [(a - every.mean()) / (every.std() + STD_FLOOR) for a in raw]
        advantages = []
        for one in batch:
            rewards = np.array([other.reward for other in batch if other.group == one.group])
            credit = (one.reward - rewards.mean()) / (rewards.std() + STD_FLOOR)
            advantages.append(np.full(len(one.ids_T), credit))
        return advantages

    def _gae(self, one: Played) -> np.ndarray:
        """A_t = sum_l lam^l delta_{t+l} over the written tokens (1506.02438), gamma 1."""
        values = np.asarray(self._values(self.critic, one.ids_T), np.float64)
        advantage, later, next_value = np.zeros(len(one.ids_T)), 0.0, 0.0
        reward = one.reward
        for t in np.flatnonzero(one.written_T)[::-1]:
            later = reward + next_value - values[t] + self._lam * later
            advantage[t], next_value, reward = later, values[t], 0.0
        return advantage

    def _logp_T(self, policy: Params, ids_T: jax.Array) -> jax.Array:
        ids_BT, position_BT = ids_T[None], jnp.arange(len(ids_T))[None]
        hidden_BTD, _ = hidden_states(
            policy, ids_BT, position_BT, jnp.ones_like(ids_BT), self._shape
        )
        return score_tokens(policy, ids_BT, hidden_BTD, position_BT).logp_BT[0]

    def _policy_loss(
        self, policy: Params, ids_T: jax.Array, written_T: Any, old_T: Any, advantage_T: Any
    ) -> jax.Array:
        """The sum of the losses of the tokens; of a sequence, their mean."""
        p = self._protocol
        logp_T = self._logp_T(policy, ids_T)
        log_ratio_T = jnp.where(written_T, logp_T - old_T, 0.0)
        if p.by_sequence:  # GSPO-token, 2507.18071, Eqs 13 and 14
            whole = jax.lax.stop_gradient(log_ratio_T.sum() / written_T.sum())
            log_ratio_T = whole + logp_T - jax.lax.stop_gradient(logp_T)
        ratio_T = jnp.exp(log_ratio_T)
        clipped_T = jnp.clip(ratio_T, 1.0 - p.clip_low, 1.0 + p.clip_high)
        gain_T = jnp.minimum(ratio_T * advantage_T, clipped_T * advantage_T)
        if p.dual_clip:  # 1912.09729, Eq 5
            bounded_T = jnp.maximum(gain_T, p.dual_clip * advantage_T)
            gain_T = jnp.where(advantage_T < 0, bounded_T, gain_T)
        loss = -jnp.where(written_T, gain_T, 0.0).sum()
        return loss / written_T.sum() if p.by_sequence else loss

    def _values_T(self, critic: Params, ids_T: jax.Array) -> jax.Array:
        ids_BT, position_BT = ids_T[None], jnp.arange(len(ids_T))[None]
        values_BT, _ = token_values(critic, ids_BT, position_BT, jnp.ones_like(ids_BT), self._shape)
        return values_BT[0]

    def _value_loss(
        self, critic: Params, ids_T: jax.Array, written_T: Any, return_T: Any
    ) -> jax.Array:
        error_T = jnp.where(written_T, self._values_T(critic, ids_T) - return_T, 0.0)
        return (error_T**2).sum()


def _shares(batch: Sequence[Played], protocol: Protocol) -> Iterator[list[int]]:
    """Yields the numbers of the trajectories of each update."""
    for _ in range(protocol.epochs):
        for share in range(protocol.minibatches):
            yield [n for n, one in enumerate(batch) if one.group % protocol.minibatches == share]


def _of(one: Played) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return one.ids_T, one.written_T, one.old_T


def _on_host(weights: Params | None) -> Any:
    return jax.tree.map(np.asarray, jax.device_get(weights))


def _sum(gradients: Sequence[Params], size: float) -> Any:
    total: Callable[..., np.ndarray] = lambda *every: np.sum(np.stack(every), axis=0) / size  # noqa: E731
    return jax.tree.map(
        total, *[jax.tree.map(lambda g: np.asarray(g, np.float64), g) for g in gradients]
    )
