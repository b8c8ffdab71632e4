"""How long the optimizer's update takes to compile, compared with `optax.adamw` alone.

The weights have the layers of SmolLM2-135M, and are narrow, because their number decides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import FULL, ModelConfig
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.learn.state import abstract_trained, make_optimizer, place_moments
from ale_jax.learn.update import Update
from ale_jax.model.params import Params
from ale_jax.model.sharding import make_mesh

HYPERS = OptimizerHypers(learning_rate=1e-4)
SHAPE = ModelConfig(
    width=64,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_width=64,
    mlp_width=170,
    qk_norm=False,
).policy_shape(1024)
ROUNDS, QUICK_ROUNDS = 5, 1
BAR = 1.5


def measure(quick: bool) -> dict[str, Any]:
    """Returns the CPU seconds of both, and their ratio: medians over rounds, which alternate."""
    mesh, rounds = make_mesh(MeshShape()), QUICK_ROUNDS if quick else ROUNDS
    compiling_seconds(_adamw, mesh)  # the first program of a process takes longer
    pairs = [
        (compiling_seconds(_update, mesh), compiling_seconds(_adamw, mesh)) for _ in range(rounds)
    ]
    ours, alone = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(
        f"update of {SHAPE.num_layers} layers, CPU seconds until it is compiled: {ours:.2f}; "
        f"optax.adamw alone: {alone:.2f}; ratio {ratio:.2f}, bar {BAR}"
    )
    return {
        "update_compile_s": round(ours, 2),
        "adamw_compile_s": round(alone, 2),
        "update_compile_ratio": round(ratio, 2),
        "update_compile_ratios": sorted(round(one / other, 2) for one, other in pairs),
    }


def compiling_seconds(make: Callable[[Mesh], Callable[[], Any]], mesh: Mesh) -> float:
    """Returns the CPU seconds of the first call of what `make` makes, less those of the second:
    tracing and compiling."""
    jax.clear_caches()
    call = make(mesh)
    seconds = [_cpu_seconds(call) for _ in range(2)]
    return seconds[0] - seconds[1]


def _cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - start


def _update(mesh: Mesh) -> Callable[[], Any]:
    optimizer = make_optimizer(HYPERS, SHAPE)
    weights, moments = _numbers(optimizer, mesh)
    update = Update(optimizer, weights, mesh)
    step, loss = jnp.int32(0), jnp.float32(1.0)
    return lambda: update(_copy(weights), _copy(moments), weights, step, loss)


def _adamw(mesh: Mesh) -> Callable[[], Any]:
    adamw = optax.adamw(HYPERS.learning_rate, HYPERS.b1, HYPERS.b2, weight_decay=0.0)
    weights, moments = _numbers(adamw, mesh)

    def update(grads: Params, moments: optax.OptState, weights: Params) -> Any:
        changes, moments = adamw.update(grads, moments, weights)
        return optax.apply_updates(weights, changes), moments

    program = jax.jit(update, donate_argnums=(0, 1))
    return lambda: program(_copy(weights), _copy(moments), weights)


def _numbers(optimizer: optax.GradientTransformation, mesh: Mesh) -> tuple[Params, optax.OptState]:
    """Returns weights and moments. Nothing is compiled for each of them."""
    weights = abstract_trained(SHAPE, FULL, mesh)
    moments = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        jax.eval_shape(optimizer.init, weights),
        place_moments(optimizer, weights, mesh),
    )
    return _copy(weights), _copy(moments)


def _copy(tree: Any) -> Any:
    """Returns new arrays of the same form."""
    return jax.tree.map(lambda x: jax.device_put(np.ones(x.shape, x.dtype), x.sharding), tree)
