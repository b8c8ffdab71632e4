"""pi_old by the learner's own forward pass, instead of as the engine recorded it."""

from __future__ import annotations

import dataclasses
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


def make_scorer(
    policy: PolicyShape, shape: Shape, mesh: Mesh, compute: Compute = FLOAT32
) -> Callable[[Params, Sequence[Sample]], list[np.ndarray]]:
    """A function (weights, samples) -> per sample, the log-probability of its policy tokens."""
    rescore = make_rescorer(policy, mesh, compute)

    def score(params: Params, samples: Sequence[Sample]) -> list[np.ndarray]:
        scores = []
        for sample in samples:  # alone in its batch, in row 0: a few samples are scored, rarely
            (batch,) = rescore(params, pack_all([sample], shape))
            scores.append(batch.logp_old_BT[batch.chunk_BT >= 0])
        return scores

    return score


def make_rescorer(
    policy: PolicyShape, mesh: Mesh, compute: Compute = FLOAT32
) -> Callable[[Params, Sequence[Batch]], list[Batch]]:
    """A function (weights, batches) -> batches whose logp_old_BT are of these weights."""

    def score(params: Params, batch: Batch) -> np.ndarray:
        return np.asarray(_logp(params, to_device(batch, mesh), policy, compute))

    def rescore(params: Params, batches: Sequence[Batch]) -> list[Batch]:
        with jax.set_mesh(mesh):
            return [dataclasses.replace(b, logp_old_BT=score(params, b)) for b in batches]

    return rescore


# Of the module: whoever scores batches of one shape shares one compilation.
@functools.partial(jax.jit, static_argnames=("policy", "compute"), compiler_options=EXACT)
def _logp(
    params: Params, arrays: dict[str, jax.Array], policy: PolicyShape, compute: Compute
) -> jax.Array:
    logp_BT = forward(params, arrays, policy, compute)[0].logp_BT
    return jnp.where(arrays["chunk_BT"] >= 0, logp_BT, 0.0)
