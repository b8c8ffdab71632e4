"""Log-probabilities of a step's tokens under the policies that are not being moved.

pi_old, which wrote the token; the proximal policy, which the step starts from; the reference, which
training started from. docs/pi_old.md says why the first two are not the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ale_jax.algo.algorithm import AlgoConfig
from ale_jax.learn.rescore import Logp
from ale_jax.model.params import Params
from ale_jax.records import Batch

# (weights that the step starts from, its batches) -> the batches, with more known of their tokens
Stage = Callable[[Params, list[Batch]], list[Batch]]


class WeightHistory:
    """The learner's weights of the newest `size` versions.

    Holding an old version costs what training moves of it: arrays are immutable, a step does not
    give the old weights away, and what it does not move (below adapters) is the same arrays.
    """

    def __init__(self, size: int):
        assert size >= 1, size
        self._size = size
        self._by_version: dict[int, Params] = {}

    def keep(self, version: int, params: Params) -> None:
        """Takes the next version, and lets go of the oldest beyond `size`."""
        newest = max(self._by_version, default=version - 1)
        assert version == newest + 1, (version, newest)
        self._by_version[version] = params
        self._by_version.pop(version - self._size, None)

    def __getitem__(self, version: int) -> Params:
        """What is not there is older than the staleness bound lets anything be: a bug of ours."""
        assert version in self._by_version, (version, sorted(self._by_version))
        return self._by_version[version]


def generating_logp(batch: Batch, history: WeightHistory, logp: Logp) -> np.ndarray:
    """Each policy token's log-probability under the weights that wrote it, float32 [B, T]; 0
    elsewhere. One forward pass per version that wrote something in the batch."""
    written_BT = batch.chunk_BT >= 0
    found_BT = np.zeros(batch.chunk_BT.shape, np.float32)
    for version in np.unique(batch.version_BT[written_BT]):
        own_BT = written_BT & (batch.version_BT == version)
        found_BT[own_BT] = logp(history[int(version)], batch)[own_BT]
    return found_BT


def make_stage(
    algo: AlgoConfig, logp: Logp, history: WeightHistory | None, reference: Params | None
) -> Stage:
    """What fills in logp_old_BT, logp_prox_BT and logp_ref_BT, as far as `algo` reads them.

    history: with old_logp "generating"; reference: with a weight on the divergence from it.
    """
    assert (history is not None) == (algo.old_logp == "generating")
    assert (reference is not None) == (algo.loss.kl_weight > 0)

    def fill(params: Params, batch: Batch) -> Batch:
        found = {}
        if algo.old_logp == "generating":
            found["logp_old_BT"] = generating_logp(batch, history, logp)
        if algo.old_logp == "step":
            found["logp_old_BT"] = logp(params, batch)
        if algo.loss.kind == "decoupled_ppo":
            found["logp_prox_BT"] = logp(params, batch)
        if reference is not None:
            found["logp_ref_BT"] = logp(reference, batch)
        return dataclasses.replace(batch, **found)

    return lambda params, batches: [fill(params, batch) for batch in batches]
