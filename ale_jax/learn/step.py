"""One training step: gradients summed over microbatches of a fixed shape, then one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from ale_jax.learn.state import TrainState
from ale_jax.model.moe import balancing_loss
from ale_jax.model.params import Params
from ale_jax.model.policy import TokenScores, hidden_states, score_tokens
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import batch_sharding
from ale_jax.records import Batch

Metrics = dict[str, jax.Array]
# (scores, arrays of the batch, normaliser) -> (loss, sums for the metrics)
LossFn = Callable[[TokenScores, dict[str, jax.Array], jax.Array], tuple[jax.Array, Metrics]]


def forward(
    params: Params, batch: dict[str, jax.Array], shape: PolicyShape
) -> tuple[TokenScores, jax.Array]:
    """Scores of every token of a packed batch, and the router's balancing loss (0 if dense)."""
    tokens_BT, position_BT, segment_BT = (
        batch["tokens_BT"],
        batch["position_BT"],
        batch["segment_BT"],
    )
    hidden_BTD, stats = hidden_states(params, tokens_BT, position_BT, segment_BT, shape)
    scores = score_tokens(params, tokens_BT, hidden_BTD, position_BT)
    if not stats:
        return scores, jnp.zeros(())
    return scores, balancing_loss(stats, segment_BT.reshape(-1) > 0, shape)


def make_train_step(
    shape: PolicyShape,
    optimizer: optax.GradientTransformation,
    loss_fn: LossFn,
    balance_weight: float,
    mesh: Mesh,
) -> Callable[[TrainState, Sequence[Batch], float], tuple[TrainState, Metrics]]:
    """A function (state, microbatches, normaliser) -> (state, metrics).

    The loss of each microbatch is a sum over its tokens divided by the step's whole `normaliser`,
    so that cutting a step into other microbatches changes nothing but rounding. Metrics are sums,
    still on the device: reading them is the caller's wait.
    """

    def microbatch_loss(params, arrays, normaliser, share):
        scores, balance = forward(params, arrays, shape)
        loss, sums = loss_fn(scores, arrays, normaliser)
        written_BT = arrays["chunk_BT"] >= 0
        sums = sums | {
            "loss": loss,
            "balance": balance * share,
            "entropy": jnp.where(written_BT, scores.entropy_BT, 0.0).sum(),
            "best": jnp.where(written_BT, scores.best_BT, False).sum(),
        }
        return loss + balance_weight * balance * share, sums

    @jax.jit
    def first_gradient(params, arrays, normaliser, share):
        return jax.grad(microbatch_loss, has_aux=True)(params, arrays, normaliser, share)

    @jax.jit
    def add_gradient(params, total, arrays, normaliser, share):
        new = jax.grad(microbatch_loss, has_aux=True)(params, arrays, normaliser, share)
        return jax.tree.map(jnp.add, total, new)

    def update(state, grads):
        norm = optax.tree.norm(grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1), norm

    # The weights are not donated: the engine still samples with them until the next publish.
    update = jax.jit(update)

    def train_step(state, batches, normaliser):
        with jax.set_mesh(mesh):
            return sum_and_update(state, batches, normaliser)

    def sum_and_update(state, batches, normaliser):
        share = 1.0 / len(batches)
        total = None
        for batch in batches:
            args = (to_device(batch, mesh), normaliser, share)
            if total is None:
                total = first_gradient(state.params, *args)
            else:
                total = add_gradient(state.params, total, *args)
        grads, sums = total
        state, norm = update(state, grads)
        return state, sums | {"grad_norm": norm}

    return train_step


def to_device(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """The batch's arrays by name, rows divided over the mesh's data axes."""
    sharding = batch_sharding(mesh)
    return {name: jax.device_put(np.asarray(a), sharding) for name, a in vars(batch).items()}
