"""Do the configs of TPU pods fit their chips? Compiles some of their layers for the real topology.

    python -m benchmarks.pods LIBTPU [--configs=qwen3_30b_a3b_v5p,...] [--layers=1,2]

LIBTPU is the libtpu.so of PyPI's libtpu, which can compile without a TPU. The gradient of one
microbatch is compiled with each of the given numbers of layers, and extrapolated to all layers:
every further layer needs the same memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from ale_jax.learn.state import abstract_trained
from ale_jax.learn.step import forward
from ale_jax.model.lora import FULL
from ale_jax.model.moe import balancing_loss
from ale_jax.model.sharding import batch_sharding, mesh_sizes
from ale_jax.system.build_config import build_config
from ale_jax.system.config import RunConfig
from ale_jax.system.plan import GIB, make_plan

# The topology's name, with the chips along each axis, by a config's chip and devices.
TOPOLOGIES = {("v5p", 32): "v5p:2x4x4", ("v6e", 64): "v6e:8x8"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libtpu")
    parser.add_argument("--configs", default="qwen3_30b_a3b_v5p,qwen3_30b_a3b_v6e")
    parser.add_argument("--layers", default="1,2")
    options = parser.parse_args(arguments)
    # There is no TPU, so its metadata must not be queried.
    os.environ |= {"TPU_LIBRARY_PATH": options.libtpu, "TPU_SKIP_MDS_QUERY": "1"}
    results = []
    for name in options.configs.split(","):
        module = importlib.import_module(f"configs.{name}")
        config = build_config(module.get_config().to_dict())
        slices = [compile_slice(config, int(layers)) for layers in options.layers.split(",")]
        results.append({"config": name, "slices": slices, **extrapolate(config, slices)})
        print(json.dumps(results[-1], indent=1))
    versions = {name: version(name) for name in ("jax", "jaxlib")}
    print(json.dumps({"benchmark": "pods", "versions": versions, "results": results}))
    return 0


def compile_slice(config: RunConfig, layers: int) -> dict[str, float]:
    """GiB of one device: input weights, output gradients, and temporaries in between."""
    mesh, policy = _mesh(config), config.model.policy_shape(config.tokenizer.vocab_size)
    policy = dataclasses.replace(policy, num_layers=layers)
    params, began = abstract_trained(policy, FULL, mesh), time.monotonic()
    size = (config.learn.microbatch_rows, config.learn.pack_length)
    numbers = jax.ShapeDtypeStruct(size, jnp.int32, sharding=batch_sharding(mesh))
    batch = dict.fromkeys(("tokens_BT", "position_BT", "segment_BT"), numbers)

    def loss(params, batch):
        scores, router = forward(params, batch, policy, config.learn.compute)
        return scores.logp_BT.sum() + scores.entropy_BT.sum() + balancing_loss(router, policy)

    places = jax.tree.map(lambda weight: weight.sharding, params)
    with jax.set_mesh(mesh):
        compiled = jax.jit(jax.grad(loss), out_shardings=places).lower(params, batch).compile()
    memory = compiled.memory_analysis()
    return {
        "layers": layers,
        "weights_gib": memory.argument_size_in_bytes / GIB,
        "gradients_gib": memory.output_size_in_bytes / GIB,
        "between_gib": memory.temp_size_in_bytes / GIB,
        "seconds": time.monotonic() - began,
    }


def _mesh(config: RunConfig) -> Mesh:
    hardware = config.hardware
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=TOPOLOGIES[hardware.chip, hardware.devices]
    )
    sizes = mesh_sizes(config.mesh, hardware.devices)
    devices = np.array(topology.devices).reshape(*sizes.values())
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def extrapolate(config: RunConfig, slices: list[dict[str, float]]) -> dict[str, float]:
    """The compiler's temporaries, extrapolated to all layers, and the plan's estimate of them."""
    first, last = slices[0], slices[-1]
    added = (last["between_gib"] - first["between_gib"]) / (last["layers"] - first["layers"])
    layers = config.model.num_layers
    plan = make_plan(config)
    state = ("weights", "moments", "gradients", "keys")
    planned = sum(need.bytes for need in plan.needs if not need.what.startswith(state)) / GIB
    return {
        "between_all_layers_gib": first["between_gib"] + added * (layers - first["layers"]),
        "between_planned_gib": planned,
        "plan_gib": plan.total / GIB,
        "chip_gib": plan.has / GIB,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
