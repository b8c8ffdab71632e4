"""What weights make of the tokens of a batch, by the learner's forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import FLOAT32, Compute
from ale_jax.learn.rows import own_rows, to_device, with_rows
from ale_jax.learn.step import forward
from ale_jax.model.compute import EXACT
from ale_jax.model.params import Params
from ale_jax.records import Batch


class Scores(NamedTuple):
    """Log-probabilities, float32; 0 where the policy did not write.

    logp_BT: of the tokens. top_id_BTk, logp_top_BTk: of the k most probable tokens in their places;
    None if k is 0.
    """

    logp_BT: np.ndarray
    top_id_BTk: np.ndarray | None = None
    logp_top_BTk: np.ndarray | None = None


Score = Callable[[Params, Batch], Scores]
# (weights, batch) -> log-probability of each policy token, float32 [B, T]; 0 elsewhere
Logp = Callable[[Params, Batch], np.ndarray]


def make_score(
    policy: PolicyShape,
    mesh: Mesh,
    compute: Compute = FLOAT32,
    top: int = 0,
    replays: bool = True,
) -> Score:
    """Makes a function that runs one forward pass per call. It returns the rows of this process.

    top: as in `Scores`, k. replays: whether the experts that a batch has are those of `policy`.
    """

    def score(params: Params, batch: Batch) -> Scores:
        arrays = to_device(batch, mesh)
        if not replays:
            arrays.pop("expert_BTLK", None)
        with jax.set_mesh(mesh):
            found = _score(params, arrays, policy, compute, top)
        return Scores(*jax.tree.map(own_rows, found))

    return score


def make_logp(policy: PolicyShape, mesh: Mesh, compute: Compute = FLOAT32) -> Logp:
    """Makes the function for the log-probabilities alone."""
    score = make_score(policy, mesh, compute)
    return lambda params, batch: score(params, batch).logp_BT


# Defined at module level, so that all callers with batches of one shape share one compilation.
@functools.partial(jax.jit, static_argnames=("policy", "compute", "top"), compiler_options=EXACT)
def _score(
    params: Params,
    arrays: dict[str, jax.Array],
    policy: PolicyShape,
    compute: Compute,
    top: int,
) -> tuple[jax.Array | None, ...]:
    scores, _ = forward(params, arrays, policy, compute, top)
    written_BT = arrays["chunk_BT"] >= 0

    def of_policy(x_BT: jax.Array) -> jax.Array:
        is_written = written_BT.reshape(*written_BT.shape, *[1] * (x_BT.ndim - 2))
        return with_rows(jnp.where(is_written, x_BT, 0))

    return jax.tree.map(of_policy, (scores.logp_BT, scores.top_id_BTk, scores.logp_top_BTk))
