"""The reference policy: the weights after the warm start, kept on disk beside the checkpoints.

Only what training moves is stored, and held again: with adapters, their values at that time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.model.lora import trained, with_trained
from ale_jax.model.params import Params

REFERENCE_DIR = "reference"


def save_reference(run: Path, params: Params, record: Callable[..., None]) -> None:
    """Writes the reference of the run in folder `run`; one of an unfinished start is replaced."""
    shutil.rmtree(run / REFERENCE_DIR, ignore_errors=True)
    with Checkpoints(run / REFERENCE_DIR, 1, record) as store:
        store.save(0, trained(params), {})


def load_reference(run: Path, params: Params, record: Callable[..., None]) -> Params:
    """The reference, laid out on the devices as `params`, with which it shares what never moves.

    Raises:
      ValueError: it is not there, or damaged.
    """
    with Checkpoints(run / REFERENCE_DIR, 1, record) as store:
        found = store.restore_latest(trained(params))
    if found is None:
        raise ValueError(
            f"{run / REFERENCE_DIR} is gone or damaged, from which the loss measures its "
            "divergence: put it back, or --overwrite to start anew"
        )
    return with_trained(params, found[1])
