"""What training carries from step to step, and the optimizer that moves it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.model.params import Params, init_params
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import param_shardings


@dataclasses.dataclass(frozen=True)
class OptimizerHypers:
    """AdamW with a linear warm-up and clipping by the global norm of the gradient."""

    learning_rate: float
    warmup_steps: int
    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.learning_rate <= 0 or self.clip_norm <= 0:
            raise ValueError(
                f"learning_rate {self.learning_rate} and clip_norm {self.clip_norm} must be > 0"
            )


@struct.dataclass
class TrainState:
    """Weights, optimizer state, and the number of updates made (int32 scalar)."""

    params: Params
    opt_state: optax.OptState
    step: jax.Array


def make_optimizer(hp: OptimizerHypers) -> optax.GradientTransformation:
    schedule = optax.linear_schedule(0.0, hp.learning_rate, max(hp.warmup_steps, 1))
    return optax.chain(
        optax.clip_by_global_norm(hp.clip_norm),
        # The schedule counts from 1: an update with the rate 0 would only cost time.
        optax.adamw(
            lambda count: schedule(count + 1), b1=hp.b1, b2=hp.b2, weight_decay=hp.weight_decay
        ),
    )


def init_state(
    key: jax.Array, shape: PolicyShape, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """A new state, each weight born on the devices where it will live."""
    params = jax.jit(init_params, static_argnums=1, out_shardings=param_shardings(shape, mesh))(
        key, shape
    )
    return begin(params, optimizer, mesh)


def begin(params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Step 0 of training `params` with `optimizer`: the moments lie where their weights lie."""
    step = jax.device_put(jnp.zeros((), jnp.int32), NamedSharding(mesh, PartitionSpec()))
    return TrainState(params, jax.jit(optimizer.init)(params), step)
