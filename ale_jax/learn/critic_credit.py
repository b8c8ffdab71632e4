"""Credit from critics: GAE on their mean value, and the masks by how far they agree (AsyPPO); and
the returns that they learn from."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ale_jax.algo.values import agreement_masks, blend, explained_variance
from ale_jax.learn.critic_batches import (
    ValueBatch,
    gae_advantage,
    of_time_steps,
    returns,
    time_steps,
    value_batches,
)
from ale_jax.learn.finite import SKIPPED
from ale_jax.records import Batch

# Metrics of a step: the critics' updates that were not finite, and the critics that made no other.
CRITIC_SKIPPED, CRITICS_WITHOUT_UPDATE = "critic_skipped_updates", "critics_without_update"

# All batches of a step -> the same batches with scaled advantages.
ScaleAdvantages = Callable[[list[Batch]], list[Batch]]


class ValueModels(Protocol):
    """The critics, as far as credit needs them; see `ale_jax.learn.critics.Critics`."""

    hp: Any
    gamma: float

    def values(self, batches: Sequence[Batch]) -> list[Sequence[np.ndarray]]: ...

    def update(
        self, batches: Sequence[ValueBatch], number: int, tokens: int
    ) -> Mapping[str, jax.Array]: ...


def learn_values(
    critics: ValueModels, batches: Sequence[Batch], by_chunk: bool = False
) -> dict[str, float]:
    """Updates each critic towards the returns of its own members of each group; figures.

    A return is the discounted sum of the rewards from a time step on, without any critic's estimate
    (R in the paper). critic_loss: mean square error over the time steps of each update, before it.
    by_chunk: see `ale_jax.learn.critic_batches`.
    """
    return_BT, of_critics = returns(batches, critics.gamma, by_chunk), []
    for number in range(critics.hp.count):
        own = value_batches(batches, return_BT, number, critics.hp.count, by_chunk)
        of_critics.append([])
        for some in _minibatches(own, critics.hp.minibatches) * critics.hp.epochs:
            tokens = int(sum(batch.own_BT.sum() for batch in some))
            of_critics[number].append(critics.update(some, number, tokens))
    # A critic that has no episode makes no update.
    of_critics = list(filter(None, jax.device_get(of_critics)))
    every_sums = list(itertools.chain(*of_critics))
    tokens = sum(sums["tokens"] for sums in every_sums)
    if not tokens:
        return {}
    return {
        "critic_loss": float(sum(sums["squares"] for sums in every_sums) / tokens),
        "critic_grad_norm": float(max(sums["grad_norm"] for sums in every_sums)),
        CRITIC_SKIPPED: int(sum(sums[SKIPPED] for sums in every_sums)),
        CRITICS_WITHOUT_UPDATE: sum(all(sums[SKIPPED] for sums in own) for own in of_critics),
    }


def _minibatches(batches: list[ValueBatch], count: int) -> list[list[ValueBatch]]:
    """At most `count` lists of about equal length. Trajectories are packed by length
    (`select_segments`), so neighbours, which go to different lists, are about equally long, and
    each list has long and short ones. There is no list without batches, as of a critic that has no
    episode."""
    return [batches[k::count] for k in range(min(count, len(batches)))]


def credit_by_critics(
    critics: ValueModels,
    batches: Sequence[Batch],
    scale: ScaleAdvantages = list,
    by_chunk: bool = False,
    blends: bool = False,
) -> tuple[list[Batch], dict[str, float]]:
    """The batches with advantages and entropy weights, and figures of the values.

    The advantage is GAE on the critics' mean value, and 0 where the critics agree. The entropy
    bonus is off where they differ most. scale: applied to the step's advantages before the mask,
    because subtracting a mean afterwards would undo it (see `credit.scale_advantages`).
    by_chunk: see `ale_jax.learn.critic_batches`; the shares of the masks are then of chunks.
    blends: lambda counts only as far as the critics know the outcomes at the end (`values.blend`).

    Call this before `learn_values`: critics that have learned from these returns predict them, and
    would leave no advantage.
    """
    if not batches:
        return [], {}
    hp, values = critics.hp, [np.stack(every) for every in critics.values(batches)]
    means = [value_QBT.mean(axis=0) for value_QBT in values]
    steps = [time_steps(batch, by_chunk) for batch in batches]
    spread_U = _at_steps([value_QBT.std(axis=0) for value_QBT in values], steps)
    teaches_U, explores_U = agreement_masks(spread_U, hp.mask_share, hp.entropy_share)
    value_U = _at_steps(means, steps)
    return_U = _at_steps(returns(batches, critics.gamma, by_chunk), steps)
    last_U = np.concatenate([_last_steps(*each) for each in zip(batches, steps, strict=True)])
    at_end = explained_variance(value_U, return_U, last_U)

    def advantage(batch: Batch, mean_BT: np.ndarray) -> np.ndarray:
        by_lambda = functools.partial(gae_advantage, batch, mean_BT, critics.gamma)
        trusting_BT = by_lambda(hp.lam, by_chunk)
        return blend(trusting_BT, by_lambda(1.0, by_chunk), at_end) if blends else trusting_BT

    plain = [
        dataclasses.replace(b, advantage_BT=advantage(b, mean_BT))
        for b, mean_BT in zip(batches, means, strict=True)
    ]
    credited = []
    for batch, step_BT, own in zip(scale(plain), steps, _places(steps), strict=True):
        teaches_BT = _on_tokens(teaches_U[own], step_BT, batch, by_chunk)
        fields = {"advantage_BT": np.where(teaches_BT, batch.advantage_BT, np.float32(0.0))}
        if hp.entropy_share:
            before_BT = np.float32(1.0) if batch.entropy_BT is None else batch.entropy_BT
            explores_BT = _on_tokens(explores_U[own], step_BT, batch, by_chunk)
            fields["entropy_BT"] = np.where(explores_BT, before_BT, np.float32(0.0))
        credited.append(dataclasses.replace(batch, **fields))
    return credited, {
        "critic_explained_variance": float(explained_variance(value_U, return_U)),
        "critic_explained_at_end": float(at_end),
        "critic_spread": float(spread_U.mean()),
        "advantage_masked": float(1.0 - teaches_U.mean()),
        "entropy_masked": float(1.0 - explores_U.mean()),
    }


def _at_steps(arrays: Sequence[np.ndarray], steps: Sequence[np.ndarray]) -> np.ndarray:
    """The time steps of all batches in one vector."""
    return np.concatenate([a_BT[step_BT] for a_BT, step_BT in zip(arrays, steps, strict=True)])


def _last_steps(batch: Batch, step_BT: np.ndarray) -> np.ndarray:
    """Which of a batch's time steps are the last of their trajectories."""
    row_BT = np.arange(len(step_BT))[:, None]
    # Of all rows in turn, as each row numbers its own trajectories.
    own_U = (row_BT * (batch.segment_BT.max() + 1) + batch.segment_BT)[step_BT]
    return np.diff(own_U, append=-1) != 0


def _places(steps: Sequence[np.ndarray]) -> list[slice]:
    """Where each batch's time steps are in the vector of `_at_steps`."""
    ends = np.cumsum([step_BT.sum() for step_BT in steps])
    return [slice(end - step_BT.sum(), end) for end, step_BT in zip(ends, steps, strict=True)]


def _on_tokens(
    found_U: np.ndarray, step_BT: np.ndarray, batch: Batch, by_chunk: bool
) -> np.ndarray:
    """A mask over a batch's time steps, spread to their tokens; True elsewhere."""
    found_BT = np.ones(step_BT.shape, bool)
    found_BT[step_BT] = found_U
    return of_time_steps(found_BT, batch, by_chunk) | (batch.chunk_BT < 0)
