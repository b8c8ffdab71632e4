"""How far the learner's log-probabilities are from the engine's: the same weights, two programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ale_jax.data.packing import Sample, Shape, pack
from ale_jax.data.replay import Group
from ale_jax.model.compute import Compute
from ale_jax.records import Batch


def learner_gap(
    recorded: Sequence[Batch], rescored: Sequence[Batch], version: int
) -> dict[str, float]:
    """Of |log pi (learner) - log pi (engine)| per policy token: learner_gap, the mean, and
    learner_gap_max.

    Both sequences hold the same batches, with logp_old_BT by the engine, and by the learner with
    the weights of `version`. Only trajectories that these weights wrote from their first token on
    are compared: for others the engine's cache held what older weights had read. (If the weights
    changed while the first prompt was read, that shows.) {} if there are none.
    """
    gaps = [
        np.abs(learner.logp_old_BT - engine.logp_old_BT)[_written_by(version, engine)]
        for engine, learner in zip(recorded, rescored, strict=True)
    ]
    gap_t = np.concatenate(gaps) if gaps else np.zeros((0,))
    if gap_t.size == 0:
        return {}
    return {"learner_gap": float(gap_t.mean()), "learner_gap_max": float(gap_t.max())}


def fresh_batches(groups: Sequence[Group], version: int, shape: Shape) -> list[Batch]:
    """One batch of trajectories that `version` wrote alone, as many as it holds; none without any.
    It has no credit: it is there to be scored."""
    fresh = [
        Sample.of(t, np.zeros(len(t.turns), np.float32), positive=False)
        for group in groups
        for t in group.valid
        if t.turns and t.start_version == version
    ]
    return [pack(fresh, shape)[0]] if fresh else []


def gap_limit(compute: Compute, int8_cache: bool) -> float:
    """A mean gap beyond this is no rounding: a hundred times what the tests allow in float32 (1e-5)
    and bfloat16 (1e-3), ten times what they allow for keys and values in int8."""
    return 1e-3 if compute.dtype == "float32" and not int8_cache else 1e-1


def _written_by(version: int, batch: Batch) -> np.ndarray:
    """[B,T]: policy tokens of trajectories whose every policy token is of `version`."""
    written_BT = batch.chunk_BT >= 0
    other_BT = written_BT & (batch.version_BT != version)
    mixed_BT = [
        np.isin(segment_T, segment_T[other_T])
        for segment_T, other_T in zip(batch.segment_BT, other_BT, strict=True)
    ]
    return written_BT & ~np.array(mixed_BT)
