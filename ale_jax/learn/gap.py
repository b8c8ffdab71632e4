"""How far the learner's log-probabilities are from the engine's: the same weights, two programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ale_jax.data.packing import Sample, Shape, pack
from ale_jax.model.compute import Compute
from ale_jax.records import Batch, Trajectory


def fresh_batches(trajectories: Iterable[Trajectory], version: int, shape: Shape) -> list[Batch]:
    """One batch of trajectories that `version` wrote alone, as many as it holds; none without any.

    For others the engine's cache held what older weights had read. (If the weights changed while
    the first prompt was read, that shows.) The batch has no credit: it is there to be scored.
    """
    fresh = [
        Sample.of(t, np.zeros(len(t.turns) - t.given, np.float32))
        for t in trajectories
        if (sampled := t.turns[t.given :]) and all((s.version == version).all() for s in sampled)
    ]
    return [pack(fresh, shape)[0]] if fresh else []


def learner_gap(batches: Sequence[Batch], learners_BT: Sequence[np.ndarray]) -> dict[str, float]:
    """Of |log pi (learner) - log pi (engine)| per policy token: learner_gap, the mean, and
    learner_gap_max. {} without batches.

    learners_BT: of each batch, what its logp_old_BT is by the learner.
    """
    gaps = [
        np.abs(learner_BT - engine.logp_old_BT)[engine.chunk_BT >= 0]
        for engine, learner_BT in zip(batches, learners_BT, strict=True)
    ]
    if not gaps:
        return {}
    gap_t = np.concatenate(gaps)
    return {"learner_gap": float(gap_t.mean()), "learner_gap_max": float(gap_t.max())}


def gap_limit(compute: Compute, eight_bits: bool) -> float:
    """A mean gap beyond this is no rounding: a hundred times what the tests allow in float32 (1e-5)
    and bfloat16 (1e-3). eight_bits: weights, keys or values of the sampler are stored so, for which
    they allow more."""
    return 1e-3 if compute.dtype == "float32" and not eight_bits else 1e-1
