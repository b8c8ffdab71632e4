"""The denominator of a step's loss, counted on the host before the step is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ale_jax.algo import hypers
from ale_jax.records import Batch


def count_normaliser(batches: Sequence[Batch], kind: str) -> np.float32:
    """Number of policy "tokens", "chunks" or "trajectories" in all microbatches of one step.

    At least 1, so that a step without policy tokens has the loss 0 and not nan. With several hosts,
    count over the batches of all of them. Relies on the packer's ids: chunks of a row are numbered
    from 0, trajectories from 1, without holes.
    """
    hypers.require_choice("normaliser", kind, hypers.NORMALISERS)
    count = 0
    for batch in batches:
        if kind == "tokens":
            count += int((batch.chunk_BT >= 0).sum())
        elif kind == "chunks":
            count += int((batch.chunk_BT.max(axis=1) + 1).sum())
        else:
            count += int(batch.segment_BT.max(axis=1).sum())
    return np.float32(max(count, 1))
