"""The reference policy, and the divergence from it.

It is a teacher, or the policy after the warm start. The latter is kept on disk beside the
checkpoints, and only the weights that are trained are stored: with adapters, only the adapters.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.learn.checkpoint import Checkpoints, Lease, StateFiles
from ale_jax.learn.scores import Score, Scores
from ale_jax.model.params import Params
from ale_jax.records import Batch

REFERENCE = "reference"  # names it among a run's states
REFERENCE_DIR = "reference"


ScoreBatches = Callable[[Sequence[Batch]], Sequence[Scores]]


@dataclasses.dataclass(frozen=True)
class Reference:
    """weights: returns them, and is called once for the batches of a step."""

    weights: Callable[[], Params]
    score: Score

    def scores(self, batches: Sequence[Batch]) -> list[Scores]:
        """Returns what the reference makes of each batch."""
        params = self.weights()
        return [self.score(params, batch) for batch in batches]


def with_reference(batches: Sequence[Batch], reference: ScoreBatches) -> list[Batch]:
    """Fills in logp_ref_BT, and, if they are told, the most probable tokens."""
    return [
        dataclasses.replace(
            batch,
            logp_ref_BT=found.logp_BT,
            top_id_BTk=found.top_id_BTk,
            logp_ref_top_BTk=found.logp_top_BTk,
        )
        for batch, found in zip(batches, reference(batches), strict=True)
    ]


def divergence_from_reference(batches: Sequence[Batch]) -> dict[str, float]:
    """Returns kl, the mean of log mu - log ref over the policy tokens of batches that have
    logp_ref_BT, in nats; {} without tokens.

    mu is the distribution that a token was sampled from. So this estimates KL(mu || ref) without
    bias, however old the tokens are.
    """
    gaps = [np.zeros(0, np.float32)]
    for batch in batches:
        assert batch.logp_ref_BT is not None, "fill it in first"
        gaps.append((batch.logp_mu_BT - batch.logp_ref_BT)[batch.chunk_BT >= 0])
    gap_U = np.concatenate(gaps)
    return {"kl": float(gap_U.mean(dtype=np.float64))} if len(gap_U) else {}


def save_reference(
    run: Path,
    weights: Any,
    record: Callable[..., None],
    files: StateFiles | None = None,
    lease: Lease | None = None,
) -> None:
    """Writes the policy after the warm start to the run's folder, replacing that of an interrupted
    start.

    weights: those that are trained, as `files` takes a state. lease: of the run.
    """
    shutil.rmtree(run / REFERENCE_DIR, ignore_errors=True)
    with Checkpoints(run / REFERENCE_DIR, 1, record, files, lease) as store:
        store.save(0, weights, {})


def load_reference(
    run: Path, target: Any, record: Callable[..., None], files: StateFiles | None = None
) -> Any:
    """Returns the trained weights that `save_reference` wrote, as `files` reads a state like
    `target`.

    Raises:
      ValueError: it is missing or damaged.
    """
    with Checkpoints(run / REFERENCE_DIR, 1, record, files) as store:
        found = store.restore_latest(target)
    if found is None:
        raise ValueError(
            f"the reference policy {run / REFERENCE_DIR} is missing or damaged, but "
            "algo.loss.kl_weight or measure_kl asks for it: restore the folder, or start over with "
            "--overwrite"
        )
    return found[1]
