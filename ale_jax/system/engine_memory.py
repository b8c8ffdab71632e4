"""What an engine needs of each of its devices, and what its weights need on their way there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import FULL, SAME
from ale_jax.config.run import RunConfig
from ale_jax.learn.state import abstract_trained
from ale_jax.model.guides import guides_bytes
from ale_jax.model.memory import cache_shardings, empty_cache
from ale_jax.model.replicas import devices_of_engine, engine_sizes
from ale_jax.model.sampling_weights import (
    adapter_shardings,
    has_own_weights,
    sampler_shardings,
    served_adapters,
    served_weights,
)
from ale_jax.model.sharding import abstract_mesh, num_data_shards
from ale_jax.model.sides import learners, num_of_process
from ale_jax.model.state_memory import states_of
from ale_jax.system.needs import Need, bytes_of, placed


def engine_mesh(config: RunConfig, mesh: AbstractMesh) -> AbstractMesh:
    """Returns the mesh of one engine. mesh: the learner's. ValueError if a process cannot be
    divided among engines, or experts or heads over one of them."""
    rollout = config.rollout
    of_process = rollout.engine_devices or num_of_process(config)
    devices = devices_of_engine(of_process, rollout.devices_per_engine)
    return abstract_mesh(engine_sizes(mesh.shape, devices))


def engine_needs(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    """Yields what an engine always needs. mesh: the learner's."""
    engine, shape = engine_mesh(config, mesh), config.engine
    if own := _own_weights(config, policy, mesh):
        stored_as = shape.weights
        name = config.learn.compute_dtype if stored_as == SAME else stored_as
        yield Need(f"weights of the sampler, {name}", own)
    if config.lora.rank:
        yield Need("adapters of the sampler", _adapters(config, policy, engine))
    cache, states = _cache_bytes(config, policy, engine)
    yield Need("keys and values of the sampler", cache)
    if states:
        yield Need("states of the sampler", states)
    # Out and in, and what the dispatch before has copied out if that one is not read yet.
    each = shape.shard(num_data_shards(engine))
    swapped = (2 + shape.dispatch_ahead) * each.swapped_pages
    copies = cache * swapped // each.pages
    if states:  # of each conversation, with one page or more
        most = min(each.swapped_pages, each.max_sequences)
        copies += states * (2 + shape.dispatch_ahead) * most // each.max_sequences
    yield Need("pages on their way to the host or back", copies)
    guides = guides_bytes(policy, shape.max_sequences, shape.decode_steps)
    yield Need("what guides the sampler's tokens", guides)
    if shape.speculative_tokens:  # of all slots at once, as a pass verifies them
        places = each.max_sequences * (1 + shape.speculative_tokens)
        size = 4 * places * policy.vocab_size // engine.shape["tensor"]
        yield Need("logits of the sampler's drafts", size)


def lent_needs(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    """Yields what an engine needs while its devices are lent, when others have its conversations:
    the weights that it has."""
    yield Need("weights of the sampler, while it is lent", _own_weights(config, policy, mesh))
    if config.lora.rank:
        adapters = _adapters(config, policy, engine_mesh(config, mesh))
        yield Need("adapters of the sampler, while it is lent", adapters)


def next_version(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    """Yields what an engine needs when it is given new weights while it still holds its own."""
    if config.lora.rank:
        adapters = _adapters(config, policy, engine_mesh(config, mesh))
        yield Need("adapters of the sampler, next version", adapters)
        return
    yield Need("weights of the sampler, next version", _own_weights(config, policy, mesh))


def sent_weights(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    """Yields what the learner needs to send weights to engines that have devices for themselves:
    all weights in their form, even if it is only once, beneath adapters."""
    of_process = num_of_process(config)
    learning = learners(of_process, of_process, config.rollout.engine_devices)
    near = abstract_mesh(engine_sizes(mesh.shape, learning))
    own = near != mesh or has_own_weights(config.learn, mesh, config.engine.weights)
    yield Need("weights on their way to the engines", own * _weights(config, policy, mesh, near))


def _own_weights(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> int:
    """Bytes of the weights without adapters; 0 if the sampler uses the learner's own arrays."""
    engine = engine_mesh(config, mesh)
    apart = config.rollout.engine_devices or engine != mesh
    if not apart and not has_own_weights(config.learn, mesh, config.engine.weights):
        return 0
    return _weights(config, policy, mesh, engine)


def _weights(
    config: RunConfig, policy: PolicyShape, mesh: AbstractMesh, engine: AbstractMesh
) -> int:
    dtype, stored_as = config.learn.compute_dtype, config.engine.weights
    serve = partial(served_weights, shape=policy, dtype=dtype, stored_as=stored_as)
    weights = jax.eval_shape(serve, abstract_trained(policy, FULL, mesh))
    return bytes_of(placed(weights, sampler_shardings(weights, policy, engine)))


def _adapters(config: RunConfig, policy: PolicyShape, engine: AbstractMesh) -> int:
    adapters = abstract_trained(policy, config.lora, engine)
    return adapter_bytes(adapters, config.learn.compute_dtype, policy, engine)


def adapter_bytes(learned: Any, dtype: str, policy: PolicyShape, engine: AbstractMesh) -> int:
    """Returns the bytes of one device's part of a sampler's adapters. learned: the learner's, as
    shapes. engine: the mesh of the sampler."""
    serve = partial(served_adapters, dtype=dtype)
    adapters = jax.eval_shape(serve, {"adapters": learned})
    return bytes_of(placed(adapters, adapter_shardings(adapters, policy, engine)))


def _cache_bytes(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> tuple[int, int]:
    """The bytes of pages, and of states."""
    engine = config.engine
    engine.shard(num_data_shards(mesh))  # ValueError if it cannot be divided
    dtype = jnp.int8 if engine.int8_cache else jnp.dtype(config.learn.compute_dtype)
    platform = config.hardware.platform or jax.default_backend()
    room = engine.pages, engine.page_tokens, dtype, engine.max_sequences, platform
    cache = jax.eval_shape(partial(empty_cache, policy, *room))
    sizes = [
        bytes_of(placed(kept, jax.tree.map(lambda _, place=place: place, kept)))
        for kept, place in zip(cache, cache_shardings(policy, mesh), strict=True)
    ]
    of_states = sum(n for n, kept in zip(sizes, cache, strict=True) if states_of([kept]))
    return sum(sizes) - of_states, of_states
