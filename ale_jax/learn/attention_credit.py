"""Attention credit as a stage of a step: one extra forward pass, then amplified advantages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.algo.attention_credit import (
    AttentionStatistics,
    amplify,
    credit_factor,
    trajectory_statistics,
)
from ale_jax.config.architecture import PolicyShape
from ale_jax.config.attention_credit import AttentionCreditHypers
from ale_jax.config.learn import Shape
from ale_jax.config.model import FLOAT32, Compute
from ale_jax.data.packing import Sample, pack_all
from ale_jax.data.selection import Selection, select_segments
from ale_jax.learn.rows import own_rows, to_device, with_rows
from ale_jax.model.attention_credit import attention_statistics, middle_layers
from ale_jax.model.compute import EXACT
from ale_jax.model.params import Params
from ale_jax.records import Batch

# (weights, batches, key) -> (batches with amplified advantages, figures)
Stage = Callable[[Params, Sequence[Batch], jax.Array], tuple[list[Batch], dict[str, float]]]


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The inputs of the forward pass, in the form of a `Batch`."""

    tokens_BT: np.ndarray
    position_BT: np.ndarray
    segment_BT: np.ndarray
    chunk_BT: np.ndarray
    expert_BTLK: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Trace:
    """The attention statistics of all T tokens of one trajectory, float32 (`AttentionStatistics` in
    `ale_jax.algo.attention_credit`).

    chunk_T: -1 where the policy did not write. factor_T: the factor on a positive advantage.
    """

    chunk_T: np.ndarray
    waad_T: np.ndarray
    fai_T: np.ndarray
    delta_T: np.ndarray
    factor_T: np.ndarray


def make_attention_credit(
    policy: PolicyShape,
    hp: AttentionCreditHypers,
    segments_per_row: int,
    mesh: Mesh,
    compute: Compute = FLOAT32,
) -> Stage:
    """Makes the stage (`amplify_by_attention`) for weights that are at hand."""
    factors = make_factors(policy, hp, segments_per_row, mesh, compute)

    def stage(
        params: Params, batches: Sequence[Batch], key: jax.Array
    ) -> tuple[list[Batch], dict[str, float]]:
        return amplify_by_attention(
            batches, lambda rows: factors(params, rows, key), segments_per_row
        )

    return stage


def make_factors(
    policy: PolicyShape,
    hp: AttentionCreditHypers,
    segments_per_row: int,
    mesh: Mesh,
    compute: Compute = FLOAT32,
) -> Callable[[Params, Sequence[Any], jax.Array], list[np.ndarray]]:
    """Makes the function (weights, rows, key) -> factors on positive advantages, float32 [B, T] for
    each of the rows. They are those of the rows of this process."""
    assert hp.credit != "none", "there is nothing to amplify"

    def factors(params: Params, every: Sequence[Any], key: jax.Array) -> list[np.ndarray]:
        found = []
        with jax.set_mesh(mesh):
            for number, rows in enumerate(every):
                arrays, own_key = to_device(rows, mesh), jax.random.fold_in(key, number)
                args = arrays, own_key, policy, hp, segments_per_row, compute
                found.append(_factor(params, *args))
        return list(map(own_rows, found))

    return factors


def amplify_by_attention(
    batches: Sequence[Batch],
    factors: Callable[[Sequence[Any]], list[np.ndarray]],
    segments_per_row: int,
) -> tuple[list[Batch], dict[str, float]]:
    """Returns the batches with amplified advantages, of any estimator, and figures.

    factors: of `make_factors`, for the weights and the key of the position in the run (seed and
    step), from which the credit "random" draws. Only trajectories with a positive advantage are
    analysed, because the advantages of the others would not change. They are repacked, with at most
    `segments_per_row` in a row (the number of chunks that a row can have is enough).
    """
    gains = [b.advantage_BT > 0 for b in batches]
    chosen = select_segments([b.segment_BT for b in batches], gains, segments_per_row)
    if not chosen.moves:
        return list(batches), {}
    ones = [np.ones(b.advantage_BT.shape, np.float32) for b in batches]
    found = chosen.put_back(factors(_take(chosen, batches)), ones)
    gained = sum(int(gain_BT.sum()) for gain_BT in gains)
    raised = sum(int(((f > 1) & g).sum()) for f, g in zip(found, gains, strict=True))
    amplified = [
        dataclasses.replace(b, advantage_BT=np.asarray(amplify(b.advantage_BT, factor_BT)))
        for b, factor_BT in zip(batches, found, strict=True)
    ]
    return amplified, {"amplified_by_attention": raised / gained}


def _take(chosen: Selection, batches: Sequence[Batch]) -> list[_Rows]:
    """Repacks the chosen trajectories of the batches."""

    def take(name: str, padding: float = 0) -> list[np.ndarray]:
        return chosen.take([getattr(b, name) for b in batches], padding)

    replayed = batches[0].expert_BTLK is not None
    columns = (
        take("tokens_BT"),
        take("position_BT"),
        chosen.segments(),
        take("chunk_BT", padding=-1),
        take("expert_BTLK", padding=-1) if replayed else [None] * chosen.batches,
    )
    return [_Rows(*each) for each in zip(*columns, strict=True)]


def trace(
    params: Params,
    sample: Sample,
    policy: PolicyShape,
    hp: AttentionCreditHypers,
    compute: Compute = FLOAT32,
) -> Trace:
    """Returns the attention statistics of one trajectory, whatever its advantages. Raises
    ValueError if it has no turns."""
    if not sample.turns:
        raise ValueError("a trajectory without turns has no attention statistics: choose another")
    (batch,) = pack_all([sample], Shape(1, sample.num_tokens, len(sample.turns)))
    rows = {field.name: getattr(batch, field.name) for field in dataclasses.fields(_Rows)}
    found = _attention_credit(params, rows, jax.random.key(0), policy, hp, 1, compute)
    (waad_BT, fai_BT, delta_BT), factor_BT = jax.device_get(found)
    return Trace(batch.chunk_BT[0], waad_BT[0], fai_BT[0], delta_BT[0], factor_BT[0])


def _statistics_and_factor(
    params: Params,
    arrays: dict[str, jax.Array],
    key: jax.Array,
    policy: PolicyShape,
    hp: AttentionCreditHypers,
    num_segments: int,
    compute: Compute,
) -> tuple[AttentionStatistics, jax.Array]:
    """Returns the statistics of each token, and the factor on its positive advantage, [B, T]."""
    tokens_BT, position_BT = arrays["tokens_BT"], arrays["position_BT"]
    segment_BT, chunk_BT = arrays["segment_BT"], arrays["chunk_BT"]
    heads = attention_statistics(
        params,
        tokens_BT,
        position_BT,
        segment_BT,
        chunk_BT >= 0,
        policy,
        middle_layers(policy.num_layers, hp.layers),
        hp.window,
        (hp.horizon_low, hp.horizon_high),
        compute,
        arrays.get("expert_BTLK"),
    )
    statistics = trajectory_statistics(*heads, chunk_BT, segment_BT, hp.head_share, num_segments)
    return statistics, credit_factor(statistics, chunk_BT, segment_BT, hp, key)


_compiled = functools.partial(jax.jit, static_argnums=(3, 4, 5, 6), compiler_options=EXACT)
_attention_credit = _compiled(_statistics_and_factor)


@_compiled
def _factor(*args: Any) -> jax.Array:
    """Returns the factor alone: "random" does not read the statistics, so the compiler omits the
    pass."""
    return with_rows(_statistics_and_factor(*args)[1])
