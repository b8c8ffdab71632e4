"""Do the configs of TPU pods compile, and do they fit? Asks the TPU's own compiler, without a TPU.

    python -m benchmarks.pods LIBTPU [--quick] [--configs=qwen3_30b_a3b_v5p,...] [--slices=1,2]

LIBTPU is the libtpu.so of PyPI's libtpu. All programs of a learner's step are compiled for the
whole topology: the gradient of one microbatch, the update, and the publish. The compiler refuses a
program that does not fit the chip. With more slices, each has a copy of the weights (mesh.data).
--quick compiles two layers of the first config.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ale_jax.config.model import DTYPES, STORED_AS
from ale_jax.config.run import RunConfig
from ale_jax.data.packing import pack
from ale_jax.learn.state import abstract_state, make_optimizer
from ale_jax.learn.step import ModelSpec, make_loss, make_train_step
from ale_jax.model.lora import trained, without_adapters
from ale_jax.model.rounded import abstract_rounded, with_rounded
from ale_jax.model.sampling_weights import in_parts, sampling_part
from ale_jax.model.sharding import batch_sharding, mesh_sizes
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.plan import GIB, Plan, make_plan

# The topology's name, with the chips along each axis, by a config's chip and devices.
TOPOLOGIES = {
    ("v5p", 32): "v5p:2x4x4",
    ("v6e", 64): "v6e:8x8",
    ("tpu7x", 64): "tpu7x:2x4x4",
}
SAMPLER = tuple(f"weights of the sampler, {form}" for form in (*DTYPES, *STORED_AS[1:]))
# How the plan calls what is in the memory beside the gradient's program, and what more there is
# when weights are published.
HELD = (
    *("moments", "keys and values", "pages on their way", "what guides", "critics"),
    *("weights of older", "weights of the reference"),
    *SAMPLER,
)
PUBLISHED = ("weights, float32", "weights before", "weights of the sampler, next")
PUBLISH = "publish"
CONFIGS = ("qwen3_30b_a3b_v5p", "qwen3_30b_a3b_v6e", "qwen3_30b_a3b_tpu7x")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libtpu", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--configs", type=lambda text: text.split(","), default=CONFIGS)
    parser.add_argument("--slices", type=lambda text: [*map(int, text.split(","))], default=[1, 2])
    options = parser.parse_args(arguments)
    if not options.libtpu.is_file():
        parser.error(f"there is no {options.libtpu}: pip download --no-deps libtpu, and unpack it")
    # There is no TPU, so its metadata must not be queried.
    os.environ |= {"TPU_LIBRARY_PATH": str(options.libtpu), "TPU_SKIP_MDS_QUERY": "1"}
    results = []
    for name in options.configs[:1] if options.quick else options.configs:
        module = importlib.import_module(f"ale_jax.configs.{name}")
        config = checked_config(module.get_config().to_dict())
        if options.quick:
            model = dataclasses.replace(config.model, num_layers=2)
            config = dataclasses.replace(config, model=model)
        for slices in options.slices[:1] if options.quick else options.slices:
            found = compile_learner(config, slices)
            results.append({"config": name, "slices": slices, **found})
            print(table(results[-1]), flush=True)
    versions = {name: version(name) for name in ("jax", "jaxlib")}
    print(json.dumps({"benchmark": "pods", "versions": versions, "results": results}))
    return 0


def table(result: dict[str, Any]) -> str:
    head = f"{result['config']}, slices: {result['slices']}"
    rows = [
        f"  {name:10} {each['minutes']:6.2f} min {each['gib']:8.2f} GiB"
        for name, each in result["programs"].items()
    ]
    return "\n".join(
        [
            head,
            *rows,
            f"  peak {result['peak_gib']:.2f} GiB, planned {result['plan_gib']:.2f}, "
            f"of {result['chip_gib']:.0f} GiB",
        ]
    )


def compile_learner(config: RunConfig, slices: int) -> dict[str, Any]:
    """Minutes to compile each program and the GiB of a device that it needs while it runs. The
    peak adds what else the learner and the engine hold meanwhile, by the plan."""
    config = on_slices(config, slices)
    programs = {}
    for name, program in learner_programs(config, topology_mesh(config, slices)):
        began = time.monotonic()
        memory = program.compile().memory_analysis()
        # What replaces an argument takes no memory of its own.
        ends = memory.output_size_in_bytes - memory.alias_size_in_bytes
        temporary = memory.temp_size_in_bytes / GIB
        programs[name] = {
            "minutes": (time.monotonic() - began) / 60,
            "gib": (memory.argument_size_in_bytes + ends) / GIB + temporary,
            "temporary_gib": temporary,
        }
    plan = make_plan(config)
    temporary = max(p["temporary_gib"] for name, p in programs.items() if name.startswith(PUBLISH))
    computing = _planned(plan, HELD) + programs["gradient"]["gib"]
    peak = max(computing, _planned(plan, (*HELD, *PUBLISHED)) + temporary)
    return {
        "programs": programs,
        "minutes": sum(each["minutes"] for each in programs.values()),
        "peak_gib": peak,
        "plan_gib": plan.total / GIB,
        "chip_gib": plan.has / GIB,
    }


def _planned(plan: Plan, names: tuple[str, ...]) -> float:
    """GiB that the plan counts under these names."""
    return sum(need.bytes for need in plan.needs if need.what.startswith(names)) / GIB


def on_slices(config: RunConfig, slices: int) -> RunConfig:
    """The config for `slices` times as many chips, each of which computes as much as before."""
    return dataclasses.replace(
        config,
        mesh=dataclasses.replace(config.mesh, data=slices),
        hardware=dataclasses.replace(config.hardware, devices=slices * config.hardware.devices),
        learn=dataclasses.replace(
            config.learn, microbatch_rows=slices * config.learn.microbatch_rows
        ),
        engine=dataclasses.replace(
            config.engine,
            pages=slices * config.engine.pages,
            max_sequences=slices * config.engine.max_sequences,
        ),
    )


def topology_mesh(config: RunConfig, slices: int) -> Mesh:
    hardware = config.hardware
    name = TOPOLOGIES[hardware.chip, hardware.devices // slices]
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=name, **({"num_slices": slices} if slices > 1 else {})
    )
    sizes = mesh_sizes(config.mesh, hardware.devices)
    devices = sorted(topology.devices, key=lambda d: (getattr(d, "slice_index", 0), d.id))
    kinds = (AxisType.Auto,) * len(sizes)
    return Mesh(np.array(devices).reshape(*sizes.values()), tuple(sizes), axis_types=kinds)


def learner_programs(config: RunConfig, mesh: Mesh) -> Iterator[tuple[str, Any]]:
    """(name, lowered program) of what the devices compute in a step. An update and publishing have
    one program for each form of layer, and one for what is outside of the layers; the first of an
    update computes the gradient's norm."""
    learn, policy = config.learn, policy_shape(config, config.tokenizer.vocab_size)
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    model = ModelSpec(policy, mesh, learn, config.lora, learn.balance_weight)
    step = make_train_step(model, optimizer, make_loss(config.algo, learn.chunks_per_pack))
    state = abstract_state(policy, optimizer, mesh, config.lora)
    moved, number = trained(state.params), everywhere(mesh)
    weights = moved, state.params
    if learn.compute_dtype != "float32":
        weights = with_rounded(state.params, abstract_rounded(state.params, learn.compute_dtype))
    args = (*weights, abstract_batch(config, mesh), number, number)
    with jax.set_mesh(mesh):
        grads, sums = jax.eval_shape(step.nothing, *args)
        sums = jax.tree.map(lambda x: everywhere(mesh, x.shape, x.dtype), sums)
        grads = jax.tree.map(lambda _, weight: weight, grads, moved)
        yield "gradient", step.add_gradient.lower((grads, sums), *args)
        update = step.update.lower(grads, state.opt_state, moved, state.step, sums["loss"])
        yield from ((f"update {number}", each) for number, each in enumerate(update))
        dtype, stored_as = learn.compute_dtype, config.engine.weights
        parts = {shape: part for part, shape in in_parts(without_adapters(state.params), policy)}
        for number, (shape, part) in enumerate(parts.items()):
            yield f"{PUBLISH} {number}", sampling_part.lower(part, shape, dtype, mesh, stored_as)


def abstract_batch(config: RunConfig, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    batch, _ = pack([], config.learn)
    place = batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)
        for name, array in vars(batch).items()
        if array is not None
    }


def everywhere(mesh: Mesh, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
