"""Credit of the tokens of packed batches: discounted returns, GAE on the critics' mean value, and
the masks by how far the critics agree (AsyPPO). `ale_jax.algo.values` has the equations.

by_chunk: the time steps are chunks (`turn_gae`), whose values and returns are those at their first
tokens; otherwise they are tokens (`gae`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from ale_jax.algo.baselines import scale_token_advantages, token_returns
from ale_jax.algo.values import (
    agreement_masks,
    blend,
    chunk_starts,
    explained_variance,
    gae,
    over_chunks,
    turn_gae,
)
from ale_jax.config.algo import AdvantageHypers, AlgoConfig
from ale_jax.config.critics import CriticsHypers
from ale_jax.learn.credit import on_cpu
from ale_jax.records import Batch

# Takes all batches of a step, and returns the same batches with scaled advantages.
ScaleAdvantages = Callable[[list[Batch]], list[Batch]]


def time_steps(batch: Batch, by_chunk: bool) -> np.ndarray:
    """Marks the tokens before which a value is asked for, bool [B, T]."""
    return np.asarray(_chunk_starts(batch.chunk_BT)) if by_chunk else batch.chunk_BT >= 0


def of_time_steps(x_BT: np.ndarray, batch: Batch, by_chunk: bool) -> np.ndarray:
    """Gives each policy token the x of its time step, [B, T]."""
    return np.asarray(_over_chunks(x_BT, batch.chunk_BT)) if by_chunk else x_BT


def returns(batches: Sequence[Batch], gamma: float, by_chunk: bool = False) -> list[np.ndarray]:
    """Returns the discounted sum of rewards from each policy token's time step on, float32 [B, T]
    for each batch: GAE with lambda 1 on values of 0.

    By tokens and by chunks, where the second of two chunks, of 2 tokens and 1, is rewarded:

        >>> from ale_jax.config.learn import Shape
        >>> from ale_jax.data.packing import demonstration, pack
        >>> batch, _ = pack([demonstration([([5], [3, 1]), ([6], [2])])], Shape(1, 5, 2))
        >>> batch.reward_BT[0, 4] = 1.0
        >>> returns([batch], 0.5)[0].tolist(), returns([batch], 0.5, by_chunk=True)[0].tolist()
        ([[0.0, 0.25, 0.5, 0.0, 1.0]], [[0.0, 0.5, 0.5, 0.0, 1.0]])
    """
    return [_gae_advantage(b, np.zeros_like(b.reward_BT), gamma, 1.0, by_chunk) for b in batches]


def credit_token_returns(
    batches: Sequence[Batch], tag_G: np.ndarray, algo: AlgoConfig
) -> list[Batch]:
    """Gives each token its discounted return (REINFORCE), scaled over the step. tag_G: of
    `RewardTable`."""
    found = [_token_returns(b.reward_BT, b.chunk_BT, b.segment_BT, algo.gamma) for b in batches]
    return scale_advantages(_with_advantages(batches, found), tag_G, algo.advantage)


def scale_advantages(batches: list[Batch], tag_G: np.ndarray, hp: AdvantageHypers) -> list[Batch]:
    """Applies `hp`'s mean, std and clip to the advantages of the tokens of a whole step. tag_G: of
    `RewardTable`.

    Mean and std are over time steps: a chunk that is one counts once, whatever its length.
    """
    if not batches:
        return batches
    # Steps differ in how many batches they have: of few sizes few programs are compiled.
    room = 1 << (len(batches) - 1).bit_length()

    def stack(arrays_BT: list[np.ndarray]) -> np.ndarray:
        empty_BT = np.zeros_like(arrays_BT[0])  # not written, so not looked at
        return np.stack(arrays_BT + [empty_BT] * (room - len(batches)))

    by_chunk = hp.steps_are_chunks
    arrays = (
        stack([b.advantage_BT for b in batches]),
        stack([time_steps(b, by_chunk) for b in batches]),
        stack([b.group_BT for b in batches]),
        tag_G,
    )
    advantage_MBT = _scale_token_advantages(*on_cpu(arrays), hp)
    scaled = zip(batches, jax.device_get(advantage_MBT))  # without the empty ones
    return _with_advantages(batches, [of_time_steps(x_BT, b, by_chunk) for b, x_BT in scaled])


def credit_by_critics(
    batches: Sequence[Batch],
    values: Sequence[Sequence[np.ndarray]],
    hp: CriticsHypers,
    algo: AlgoConfig,
    scale: ScaleAdvantages = list,
) -> tuple[list[Batch], dict[str, float]]:
    """Returns the batches with advantages and entropy weights, and figures of the values.

    The advantage is GAE on the critics' mean value, and 0 where the critics agree. The entropy
    bonus is off where they differ most. Where chunks are the time steps, the shares of these masks
    are of chunks. Where `algo.advantage` blends, lambda counts only as far as the critics know the
    outcomes at the end (`values.blend`).

    values: for each batch, each critic's prediction before each token, float32 [B, T], made before
    the critics learn from these batches. Those that have learned from the returns predict them, and
    would leave no advantage. scale: applied to the step's advantages before the mask, because
    subtracting a mean afterwards would undo it (see `scale_advantages`).
    """
    if not batches:
        return [], {}
    gamma, by_chunk = algo.gamma, algo.advantage.steps_are_chunks
    stacked = [np.stack(every) for every in values]
    means = [value_QBT.mean(axis=0) for value_QBT in stacked]
    steps = [time_steps(batch, by_chunk) for batch in batches]
    spread_U = _at_steps([value_QBT.std(axis=0) for value_QBT in stacked], steps)
    teaches_U, explores_U = agreement_masks(spread_U, hp.mask_share, hp.entropy_share)
    value_U = _at_steps(means, steps)
    return_U = _at_steps(returns(batches, gamma, by_chunk), steps)
    last_U = np.concatenate([_last_steps(*each) for each in zip(batches, steps, strict=True)])
    at_end = explained_variance(value_U, return_U, last_U)

    def advantage(batch: Batch, mean_BT: np.ndarray) -> np.ndarray:
        trusting_BT = _gae_advantage(batch, mean_BT, gamma, hp.lam, by_chunk)
        if not algo.advantage.blends:
            return trusting_BT
        cautious_BT = _gae_advantage(batch, mean_BT, gamma, 1.0, by_chunk)
        return np.asarray(blend(trusting_BT, cautious_BT, at_end))

    plain = _with_advantages(batches, list(map(advantage, batches, means)))
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


def _gae_advantage(
    batch: Batch, value_BT: np.ndarray, gamma: float, lam: float, by_chunk: bool
) -> np.ndarray:
    """Returns GAE on the values before each time step."""
    estimate = _turn_gae if by_chunk else _gae
    arrays = value_BT, batch.reward_BT, batch.chunk_BT, batch.segment_BT
    return np.asarray(estimate(*arrays, gamma, lam)[0])


def _with_advantages(batches: Sequence[Batch], advantages: Sequence[np.ndarray]) -> list[Batch]:
    return [
        dataclasses.replace(b, advantage_BT=np.asarray(advantage_BT))
        for b, advantage_BT in zip(batches, advantages, strict=True)
    ]


def _at_steps(arrays: Sequence[np.ndarray], steps: Sequence[np.ndarray]) -> np.ndarray:
    """Joins the time steps of all batches in one vector."""
    return np.concatenate([a_BT[step_BT] for a_BT, step_BT in zip(arrays, steps, strict=True)])


def _last_steps(batch: Batch, step_BT: np.ndarray) -> np.ndarray:
    """Marks those of a batch's time steps that are the last of their trajectories."""
    row_BT = np.arange(len(step_BT))[:, None]
    # Of all rows in turn, as each row numbers its own trajectories.
    own_U = (row_BT * (batch.segment_BT.max() + 1) + batch.segment_BT)[step_BT]
    return np.diff(own_U, append=-1) != 0


def _places(steps: Sequence[np.ndarray]) -> list[slice]:
    """Returns where each batch's time steps are in the vector of `_at_steps`."""
    ends = np.cumsum([step_BT.sum() for step_BT in steps])
    return [slice(end - step_BT.sum(), end) for end, step_BT in zip(ends, steps, strict=True)]


def _on_tokens(
    found_U: np.ndarray, step_BT: np.ndarray, batch: Batch, by_chunk: bool
) -> np.ndarray:
    """Spreads a mask over a batch's time steps to their tokens; True elsewhere."""
    found_BT = np.ones(step_BT.shape, bool)
    found_BT[step_BT] = found_U
    return of_time_steps(found_BT, batch, by_chunk) | (batch.chunk_BT < 0)


_gae = jax.jit(gae, static_argnums=(4, 5))
_turn_gae = jax.jit(turn_gae, static_argnums=(4, 5))
_chunk_starts = jax.jit(chunk_starts)
_over_chunks = jax.jit(over_chunks)
_token_returns = jax.jit(token_returns, static_argnums=3)
_scale_token_advantages = jax.jit(scale_token_advantages, static_argnums=4)
