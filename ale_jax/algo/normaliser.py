"""The denominator of a step's loss, counted on the host before the step is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ale_jax.algo import hypers
from ale_jax.algo.algorithm import AGGREGATIONS
from ale_jax.records import Batch


def count_normaliser(
    batches: Sequence[Batch], aggregation: str, constant_tokens: int = 0
) -> np.float32:
    """How many policy tokens, chunks or trajectories there are in all microbatches of one step;
    see `LossHypers.aggregation`. Trajectories are those in which the policy wrote something.

    At least 1, so that a step without policy tokens has the loss 0 and not nan. With several hosts,
    count over the batches of all of them. Relies on the packer's ids: chunks of a row are numbered
    from 0 without holes.
    """
    hypers.require_choice("aggregation", aggregation, AGGREGATIONS)
    if aggregation == "tokens":
        count = sum(int((b.chunk_BT >= 0).sum()) for b in batches)
    elif aggregation == "chunks":
        count = sum(int((b.chunk_BT.max(axis=1) + 1).sum()) for b in batches)
    else:
        count = sum(_trajectories(b) for b in batches) * (constant_tokens or 1)
    return np.float32(max(count, 1))


def _trajectories(batch: Batch) -> int:
    return sum(
        len(np.unique(segment_T[chunk_T >= 0]))
        for segment_T, chunk_T in zip(batch.segment_BT, batch.chunk_BT, strict=True)
    )
