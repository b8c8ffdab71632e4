"""The policies that learn: which wins depends on how weights are shared and on the optimizer.

Each adds what it learns to the prior (`world.prior`), and adds nothing at first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.laboratory.world import Size

HIDDEN = 32
MOMENTUM, ADAM_DECAYS = 0.9, (0.9, 0.95)


class Policy(NamedTuple):
    """begin: key, size -> weights. logits: weights, size -> what is added to the prior,
    [M, D, L, V]. optimizer: its updates are multiplied by the learning rate."""

    begin: Callable[[jax.Array, Size], Any]
    logits: Callable[[Any, Size], jax.Array]
    optimizer: Callable[[], optax.GradientTransformation]


def _table(key: jax.Array, size: Size) -> Any:
    """A logit for each word in each state, and one that all states share."""
    own_MDLV = jnp.zeros((size.tasks, size.stages, size.tokens, size.words))
    return {"own_MDLV": own_MDLV, "shared_LV": jnp.zeros((size.tokens, size.words))}


def _table_logits(weights: Any, size: Size) -> jax.Array:
    return weights["own_MDLV"] + weights["shared_LV"][None, None]


def _network(key: jax.Array, size: Size) -> Any:
    """Two layers that read the task and the stage; what one state learns moves all others."""
    task_key, stage_key = jax.random.split(key)
    width = size.tokens * size.words
    return {
        "task_MH": jax.random.normal(task_key, (size.tasks, HIDDEN)),
        "stage_DH": jax.random.normal(stage_key, (size.stages, HIDDEN)),
        "out_HO": jnp.zeros((HIDDEN, width)),
        "bias_O": jnp.zeros(width),
    }


def _network_logits(weights: Any, size: Size) -> jax.Array:
    hidden_MDH = jnp.tanh(weights["task_MH"][:, None] + weights["stage_DH"][None])
    out_MDO = hidden_MDH @ weights["out_HO"] / HIDDEN**0.5 + weights["bias_O"][None, None]
    return out_MDO.reshape(size.tasks, size.stages, size.tokens, size.words)


def _steps_of_one_length() -> optax.GradientTransformation:
    """As Muon's, whose length no factor on the loss can change."""
    return optax.chain(optax.trace(MOMENTUM), optax.normalize_by_update_norm())


def _adam() -> optax.GradientTransformation:
    return optax.scale_by_adam(*ADAM_DECAYS)


POLICIES = {
    "table": Policy(_table, _table_logits, _steps_of_one_length),
    "table_adam": Policy(_table, _table_logits, _adam),
    "network": Policy(_network, _network_logits, _adam),
}
