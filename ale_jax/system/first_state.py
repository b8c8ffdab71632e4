"""Where training starts: random weights, or those of a checkpoint that somebody else wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import optax
from jax.sharding import Mesh

from ale_jax.learn.state import TrainState, begin, init_state, with_new_adapters
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import param_shardings
from ale_jax.model.weights.load import load_params, open_checkpoint

if TYPE_CHECKING:
    from ale_jax.system.config import RunConfig


def first_state(
    config: RunConfig, policy: PolicyShape, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Step 0. Errors: ValueError for a checkpoint that is not in order."""
    key = jax.random.key(config.seed)
    if not config.weights:
        return init_state(key, policy, optimizer, mesh, config.lora)
    places = param_shardings(policy, mesh)
    params = load_params(open_checkpoint(config.weights), shardings=places)
    params = with_new_adapters(key, params, policy, config.lora, mesh)
    return begin(params, optimizer, mesh)
