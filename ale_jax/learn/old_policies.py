"""Log-probabilities of a step's tokens under the policies that the step does not update.

These are pi_old, which generated the token, and the proximal policy, with which the step starts;
docs/pi_old.md explains why they differ. They are recomputed by the learner's forward pass instead
of taken from the engine's records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ale_jax.config.algo import AlgoConfig
from ale_jax.model.params import Params
from ale_jax.records import Batch

# (version of the weights, batch) -> log-probability of each policy token, float32 [B, T]; 0
# elsewhere
LogpUnder = Callable[[int, Batch], np.ndarray]


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
    """Fills in those of logp_old_BT and logp_prox_BT that `algo` reads. version: of the weights
    that the step starts from."""

    def fill(batch: Batch) -> Batch:
        found = {}
        if algo.old_logp == "generating":
            found["logp_old_BT"] = generating_logp(batch, logp)
        if algo.old_logp == "step":
            found["logp_old_BT"] = logp(version, batch)
        if algo.loss.kind == "decoupled_ppo":
            found["logp_prox_BT"] = logp(version, batch)
        return dataclasses.replace(batch, **found)

    return [fill(batch) for batch in batches]
