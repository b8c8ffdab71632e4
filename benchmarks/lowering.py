"""The two programs of a policy, traced for the devices of a mesh, which need not be present."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape
from ale_jax.config.model import FULL, Compute
from ale_jax.engine.dispatch import PrefillBatcher, page_table, said_by, slot_state
from ale_jax.learn.state import abstract_trained
from ale_jax.learn.step import forward
from ale_jax.model.generate import prefill_and_decode
from ale_jax.model.memory import Cache, cache_shardings, empty_cache
from ale_jax.model.params import is_param, param_table
from ale_jax.model.sharding import (
    SAMPLER_RULES,
    batch_sharding,
    current_device,
    num_data_shards,
    param_shardings,
)

COMPUTE = Compute("bfloat16", "layers")
AnyMesh = AbstractMesh | Mesh


def traced_gradient(
    policy: PolicyShape, mesh: AnyMesh, rows: int, tokens: int
) -> jax.stages.Traced:
    """Traces the gradient of the log-probabilities of packed rows, within the mesh."""

    def loss(params: Any, batch: Any) -> jax.Array:
        return forward(params, batch, policy, COMPUTE)[0].logp_BT.sum()

    numbers = jax.ShapeDtypeStruct((rows, tokens), jnp.int32, sharding=batch_sharding(mesh))
    batch = dict.fromkeys(("tokens_BT", "position_BT", "segment_BT"), numbers)
    return jax.jit(jax.grad(loss)).trace(abstract_trained(policy, FULL, mesh), batch)


def traced_sampler(policy: PolicyShape, mesh: AnyMesh, engine: EngineShape) -> jax.stages.Traced:
    """Traces the engine's program, with weights and pages in bfloat16, within the mesh, whose
    devices say for which platform."""
    platform = current_device().platform
    table, places = param_table(policy), param_shardings(policy, mesh, SAMPLER_RULES)
    params = jax.tree.map(
        lambda param, place: _abstract(param.shape, jnp.bfloat16, place),
        *(table, places),
        is_leaf=is_param,
    )
    cache = [
        jax.tree.map(lambda x, p=place: _abstract(x.shape, x.dtype, p), layer)
        for layer, place in zip(
            abstract_cache(policy, engine, platform), cache_shardings(policy, mesh), strict=True
        )
    ]
    idle = slot_state([], engine.max_sequences)
    chunks = PrefillBatcher(engine, num_data_shards(mesh), policy.is_recurrent).arrays()
    return prefill_and_decode.trace(
        *(params, cache, idle, page_table([], engine), chunks, idle),
        said=said_by([], engine),
        shape=policy,
        sizes=engine.prefill_tokens,
        steps=engine.decode_steps,
        drafted=engine.speculative_tokens,
        stop_ids=(0,),
        platform=platform,
    )


def abstract_cache(policy: PolicyShape, engine: EngineShape, platform: str) -> Cache:
    """Returns shape and dtype of what the engine keeps of conversations, in bfloat16."""
    sizes = engine.pages, engine.page_tokens, jnp.bfloat16, engine.max_sequences, platform
    return jax.eval_shape(partial(empty_cache, policy, *sizes))


def _abstract(shape: tuple[int, ...], dtype: Any, place: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=place)
