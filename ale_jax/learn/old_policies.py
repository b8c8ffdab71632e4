"""Log-probabilities of a step's tokens under the policies that the step does not update.

These are pi_old, which generated the token; the proximal policy, with which the step starts; and
the reference policy. docs/pi_old.md explains why the first two differ. They are recomputed by the
learner's forward pass instead of taken from the engine's records.

The reference policy is the policy after the warm start. It is kept on disk beside the checkpoints.
Only the weights that are trained are stored: with adapters, only the adapters.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ale_jax.config.algo import AlgoConfig
from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import FLOAT32, Compute
from ale_jax.learn.checkpoint import Checkpoints, Lease, StateFiles
from ale_jax.learn.rows import own_rows, to_device, with_rows
from ale_jax.learn.step import forward
from ale_jax.model.compute import EXACT
from ale_jax.model.params import Params
from ale_jax.records import Batch

# (weights, batch) -> log-probability of each policy token, float32 [B, T]; 0 elsewhere
Logp = Callable[[Params, Batch], np.ndarray]


def make_logp(policy: PolicyShape, mesh: Mesh, compute: Compute = FLOAT32) -> Logp:
    """Makes a function that runs one forward pass per call. It returns the rows of this process."""

    def logp(params: Params, batch: Batch) -> np.ndarray:
        with jax.set_mesh(mesh):
            return own_rows(_logp(params, to_device(batch, mesh), policy, compute))

    return logp


# Defined at module level, so that all callers with batches of one shape share one compilation.
@functools.partial(jax.jit, static_argnames=("policy", "compute"), compiler_options=EXACT)
def _logp(
    params: Params, arrays: dict[str, jax.Array], policy: PolicyShape, compute: Compute
) -> jax.Array:
    logp_BT = forward(params, arrays, policy, compute)[0].logp_BT
    return with_rows(jnp.where(arrays["chunk_BT"] >= 0, logp_BT, 0.0))


REFERENCE = "reference"

# (version of the weights, or REFERENCE; batch) -> as of `Logp`
LogpUnder = Callable[[int | str, Batch], np.ndarray]


class WeightHistory:
    """The learner's weights of the newest version, and of those at most `max_age` versions older.

    An old version costs memory only for the weights that are trained: arrays are immutable, a step
    does not donate the old weights, and weights that are not trained (the base of adapters) are
    shared between versions.
    """

    def __init__(self, max_age: int):
        assert max_age >= 0, max_age
        self._max_age = max_age
        self._by_version: dict[int, Params] = {}

    def keep(self, version: int, params: Params) -> None:
        """Adds the next version and drops the one that has become too old."""
        newest = max(self._by_version, default=version - 1)
        assert version == newest + 1, (version, newest)
        self._by_version[version] = params
        self._by_version.pop(version - self._max_age - 1, None)

    def __getitem__(self, version: int) -> Params:
        """Asserts that the version is there; otherwise the staleness bound has been violated."""
        assert version in self._by_version, (version, sorted(self._by_version))
        return self._by_version[version]


def generating_logp(batch: Batch, logp: LogpUnder) -> np.ndarray:
    """Returns each policy token's log-probability under the weights that generated it, [B, T]; 0
    elsewhere. There is one forward pass per version that generated tokens of the batch."""
    action_mask_BT = batch.chunk_BT >= 0
    found_BT = np.zeros(batch.chunk_BT.shape, np.float32)
    for version in np.unique(batch.version_BT[action_mask_BT]):
        own_BT = action_mask_BT & (batch.version_BT == version)
        found_BT[own_BT] = logp(int(version), batch)[own_BT]
    return found_BT


def fill_old_logp(
    batches: Sequence[Batch], algo: AlgoConfig, version: int, logp: LogpUnder
) -> list[Batch]:
    """Fills in those of logp_old_BT, logp_prox_BT and logp_ref_BT that `algo` reads. version: of
    the weights that the step starts from."""

    def fill(batch: Batch) -> Batch:
        found = {}
        if algo.old_logp == "generating":
            found["logp_old_BT"] = generating_logp(batch, logp)
        if algo.old_logp == "step":
            found["logp_old_BT"] = logp(version, batch)
        if algo.loss.kind == "decoupled_ppo":
            found["logp_prox_BT"] = logp(version, batch)
        filled = dataclasses.replace(batch, **found)
        return with_reference(filled, logp) if algo.loss.kl_weight > 0 else filled

    return [fill(batch) for batch in batches]


def with_reference(batch: Batch, logp: LogpUnder) -> Batch:
    """Fills in logp_ref_BT."""
    return dataclasses.replace(batch, logp_ref_BT=logp(REFERENCE, batch))


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


REFERENCE_DIR = "reference"


def save_reference(
    run: Path,
    weights: Any,
    record: Callable[..., None],
    files: StateFiles | None = None,
    lease: Lease | None = None,
) -> None:
    """Writes the reference policy to the run's folder, replacing that of an interrupted start.

    weights: those that are trained, as `files` takes a state. lease: of the run.
    """
    shutil.rmtree(run / REFERENCE_DIR, ignore_errors=True)
    with Checkpoints(run / REFERENCE_DIR, 1, record, files, lease) as store:
        store.save(0, weights, {})


def load_reference(
    run: Path, target: Any, record: Callable[..., None], files: StateFiles | None = None
) -> Any:
    """Returns the trained weights of the reference policy, as `files` reads a state like `target`.

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
