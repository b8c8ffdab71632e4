"""Log-probabilities by the learner's own forward pass, instead of as the engine recorded them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ale_jax.data.packing import Sample, Shape, pack_all
from ale_jax.learn.step import forward, to_device
from ale_jax.model.compute import EXACT, FLOAT32, Compute
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.records import Batch

# (weights, batch) -> log-probability of each policy token, float32 [B, T]; 0 elsewhere
Logp = Callable[[Params, Batch], np.ndarray]


def make_logp(policy: PolicyShape, mesh: Mesh, compute: Compute = FLOAT32) -> Logp:
    """One forward pass per call."""

    def logp(params: Params, batch: Batch) -> np.ndarray:
        with jax.set_mesh(mesh):
            return np.asarray(_logp(params, to_device(batch, mesh), policy, compute))

    return logp


def make_scorer(
    policy: PolicyShape, shape: Shape, mesh: Mesh, compute: Compute = FLOAT32
) -> Callable[[Params, Sequence[Sample]], list[np.ndarray]]:
    """A function (weights, samples) -> per sample, the log-probability of its policy tokens."""
    logp = make_logp(policy, mesh, compute)

    def score(params: Params, samples: Sequence[Sample]) -> list[np.ndarray]:
        scores = []
        for sample in samples:  # alone in its batch, in row 0: a few samples are scored, rarely
            (batch,) = pack_all([sample], shape)
            scores.append(logp(params, batch)[batch.chunk_BT >= 0])
        return scores

    return score


# Of the module: whoever scores batches of one shape shares one compilation.
@functools.partial(jax.jit, static_argnames=("policy", "compute"), compiler_options=EXACT)
def _logp(
    params: Params, arrays: dict[str, jax.Array], policy: PolicyShape, compute: Compute
) -> jax.Array:
    logp_BT = forward(params, arrays, policy, compute)[0].logp_BT
    return jnp.where(arrays["chunk_BT"] >= 0, logp_BT, 0.0)
