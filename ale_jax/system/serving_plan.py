"""The sizes of a server, and an estimate of what it holds in the memory of each device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import FULL
from ale_jax.config.run import RunConfig
from ale_jax.config.serve import AUTO
from ale_jax.learn.state import abstract_trained, abstract_weights
from ale_jax.model.params import Params
from ale_jax.model.replicas import devices_of_engine
from ale_jax.model.served_adapters import joined_table
from ale_jax.model.sharding import num_data_shards
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.engine_memory import adapter_bytes, engine_mesh, engine_needs
from ale_jax.system.needs import Need, bytes_of
from ale_jax.system.plan import Plan, Side, planned
from ale_jax.system.served_adapters import check_served, read_served

REMEDY = (
    "shard over more devices (mesh.fsdp, expert, tensor), lower serve.max_sequences or "
    "engine.max_sequence_length, or name fewer of serve.adapters"
)


def only_sampling(config: RunConfig) -> RunConfig:
    """Returns the config with engines, of the same size, on the learner's devices, too."""
    rollout = config.rollout
    if not rollout.engine_devices:
        return config
    of_engine = devices_of_engine(rollout.engine_devices, rollout.devices_per_engine)
    on_all = dataclasses.replace(
        rollout, engine_devices=0, lent_engines=0, devices_per_engine=of_engine
    )
    return dataclasses.replace(
        config, rollout=on_all, mesh=dataclasses.replace(config.mesh, data=-1)
    )


def sized(config: RunConfig, platform: str, shards: int) -> RunConfig:
    """Returns the config with the sizes and the type of `serve` in place of the run's. shards: of
    the data axes of an engine's mesh."""
    dtype = config.serve.compute_dtype
    if dtype == AUTO:
        dtype = "float32" if platform == "cpu" else config.learn.compute_dtype
    return dataclasses.replace(
        config,
        learn=dataclasses.replace(config.learn, compute_dtype=dtype),
        engine=config.serve.engine(config.engine, shards),
    )


def plan_named_adapters(config: RunConfig, say: Callable[[str], None]) -> Plan:
    """Returns what `serve` needs with the adapters of `serve.adapters`. say, errors: as of
    `read_served` and `check_served`."""
    check_served(config)
    policy = policy_shape(config, config.tokenizer.vocab_size)
    return plan_serving(config, policy, list(read_served(config, policy, say).values()))


def plan_serving(config: RunConfig, policy: PolicyShape, adapters: Sequence[list[Params]]) -> Plan:
    """Returns what `serve` needs while it starts, when the weights that it has read are still
    there beside the sampler's. adapters: those of `serve.adapters`, as `read_served` returns them.
    Devices are those of `make_plan`."""
    config = only_sampling(config)
    chip, mesh, has = planned(config)
    engine = engine_mesh(config, mesh)
    platform = config.hardware.platform or jax.default_backend()
    config = sized(config, platform, num_data_shards(engine))
    needs = [Need("weights, float32", bytes_of(abstract_trained(policy, FULL, mesh)))]
    needs += engine_needs(config, policy, mesh)
    if adapters:
        dtype = config.learn.compute_dtype
        read = abstract_weights(joined_table(adapters, policy), mesh)
        own = adapter_bytes(read, dtype, policy, engine)
        needs.append(Need(f"{len(adapters)} adapters, float32 and {dtype}", bytes_of(read) + own))
    side = Side("", mesh.size, dict(mesh.shape), tuple(needs))
    return Plan(chip, (side,), has, "serve", REMEDY)
