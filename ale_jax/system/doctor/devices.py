"""Whether the devices are those of the config, and compute what they should."""

from __future__ import annotations

import queue
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.config.run import RunConfig
from ale_jax.model.sharding import mesh_sizes
from ale_jax.model.sides import learners
from ale_jax.system.doctor.findings import Finding, fail, ok, warn

# How jax's names of the chips of `hardware.chip` begin, or, for TPUs, what they are.
KINDS = {
    "v5e": ("TPU v5 lite", "TPU v5e"),
    "v5p": ("TPU v5", "TPU v5p"),
    "v6e": ("TPU v6 lite", "TPU v6e"),
    "tpu7x": ("TPU7x",),
    "h100": ("NVIDIA H100",),
    "h200": ("NVIDIA H200",),
}
GROUPS, ROWS, WIDTH = 8, 512, 128  # of the product whose cost is looked at
MAX_COST = 1.5  # times the work that is needed
SUM_S = 60.0  # for all devices to add up one number each


def check_mesh(config: RunConfig, kind: str, count: int) -> Finding:
    """Checks whether the mesh fits on `count` devices, and whether these are what the config is
    meant for. kind: jax's name of them."""
    name, hardware = "devices", config.hardware
    found = f"{count} x {kind}"
    if hardware.chip:
        found += f", and the config is for {hardware.devices} x {hardware.chip}"
    try:
        of_engines = config.rollout.engine_devices
        mesh_sizes(config.mesh, learners(count, count // jax.process_count(), of_engines))
    except ValueError as error:
        other = "start it on such devices, or use another mesh: " if hardware.chip else ""
        return fail(name, found, f"{other}{error}")
    if hardware.chip and not (count == hardware.devices and is_chip(kind, hardware.chip)):
        return warn(name, found, "the run would take them; see below whether it fits")
    return ok(name, found)


def is_chip(kind: str, chip: str) -> bool:
    # "TPU v5 lite" is no "TPU v5".
    return kind in KINDS[chip] or (kind.startswith("NVIDIA") and kind.startswith(KINDS[chip]))


def check_grouped_product() -> Finding:
    """Checks what the compiler makes of `ragged_dot`: a compiler that was not made for this jaxlib
    may multiply every row with every group's matrix, without saying so. The project has products of
    its own for its experts, so this is only a sign of the pair."""
    return judge_cost(jax.local_devices()[0].platform, grouped_product_cost())


def grouped_product_cost() -> float:
    """Operations of the compiled product, divided by those that are needed; 0 if the compiler does
    not say."""
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16)
    matrices = jax.ShapeDtypeStruct((GROUPS, WIDTH, WIDTH), jnp.bfloat16)
    sizes = jax.ShapeDtypeStruct((GROUPS,), jnp.int32)
    compiled = jax.jit(jax.lax.ragged_dot).lower(x, matrices, sizes).compile()
    cost = compiled.cost_analysis() or {}
    return cost.get("flops", 0.0) / (2 * ROWS * WIDTH * WIDTH)


def judge_cost(platform: str, cost: float) -> Finding:
    name = "grouped product"
    if not cost:
        return ok(name, f"the compiler for {platform} does not count its operations")
    found = f"{cost:.2f} times the operations needed, in {GROUPS} groups on {platform}"
    if platform != "tpu":
        dense = ", which is dense" if cost > MAX_COST else ""
        return ok(name, f"{found}{dense}; only TPUs are judged by it")
    if cost > MAX_COST:
        return fail(name, found, "jaxlib and libtpu are no pair: see accelerator above")
    return ok(name, found)


def check_sum() -> Finding:
    """Checks whether all devices of all processes can add up one number each. All processes must
    call it. Errors: TimeoutError."""
    count = jax.device_count()
    expected = count * (count + 1) // 2
    totals = sorted(set(_within(SUM_S, "the devices have not added up their numbers")))
    found = f"{', '.join(map(str, totals))} over {count} devices"
    if totals != [expected]:
        return fail("all-reduce", found, f"{expected} is right: replace the devices or their links")
    return ok("all-reduce", found)


def _sum() -> list[int]:
    """As each device of this process has it."""
    mesh = Mesh(np.array(jax.devices()), ("all",))
    parts, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("all",), ()))
    numbers = np.arange(1, mesh.size + 1, dtype=np.int32)
    spread = jax.make_array_from_callback(numbers.shape, parts, lambda index: numbers[index])
    total = jax.jit(jnp.sum, out_shardings=whole)(spread)
    return [int(shard.data) for shard in total.addressable_shards]


def _within(seconds: float, late: str) -> list[int]:
    """`_sum`, which may never end."""
    answers: queue.Queue[Any] = queue.Queue()

    def answer() -> None:
        try:
            answers.put(_sum())
        except jax.errors.JaxRuntimeError as error:
            answers.put(error)

    threading.Thread(target=answer, name="sum", daemon=True).start()
    try:
        found = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"{late} within {seconds:g} s: check the links between them") from None
    if isinstance(found, Exception):
        raise ConnectionError(f"the devices cannot add up their numbers: {found}") from found
    return found
