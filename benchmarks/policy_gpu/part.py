"""One part of the measurements, in a separate process, so that its failure affects no other part.

    python -m benchmarks.policy_gpu.part {decode,train,swap} [--quick]

Prints a line of JSON for the device, and one for each measurement: its key, its value or null, and
its details.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from ale_jax.model.params import init_params
from benchmarks.policy_gpu import plan
from benchmarks.policy_gpu.decode import measure_bandwidth, measure_decode, sampler_weights
from benchmarks.policy_gpu.train import measure_train
from benchmarks.weight_swap import HALF_BILLION, measure_swap

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "tokamax")
SPARE_TIME_S = 150.0

# Key of the result, name of the detail that is its value, and the measurement.
Measurement = tuple[str, str, Callable[[], dict[str, Any]]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    # Must be set before the devices are first used. JAX's default is 0.75.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    device = jax.devices()[0]
    _say(
        {"device": {"platform": device.platform, "kind": device.device_kind}, "versions": _found()}
    )
    if device.platform != "gpu":
        return 0
    return measure_all(PARTS[options.part](options.quick))


def measure_all(measurements: Iterator[Measurement]) -> int:
    """Makes all measurements; returns 1 if one failed, which does not stop the others."""
    failures = 0
    for key, value, measure in measurements:
        print(f"{key} ...", file=sys.stderr, flush=True)
        try:
            details = measure()
        except Exception as error:  # of any kind, as the next measurement may work
            traceback.print_exc()
            failures += 1
            _say({"key": key, "value": None, "details": {"error": f"{error!r:.500}"}})
        else:
            _say({"key": key, "value": details[value], "details": details})
    return min(failures, 1)


def _decode(quick: bool) -> Iterator[Measurement]:
    start = time.monotonic()
    work = plan.QUICK_DECODE if quick else plan.DECODE
    bandwidth = measure_bandwidth()
    params = sampler_weights(work.shape)
    for batch in work.batches:
        yield (
            f"decode_floor_ratio_b{batch}",
            "ratio",
            lambda batch=batch: measure_decode(params, work, batch, "gpu", bandwidth),
        )
    # For comparison: without the kernel that reads pages, if there is time to compile it.
    if not quick and time.monotonic() - start < SPARE_TIME_S:
        yield (
            "decode_floor_ratio_b64_gathered_rows",
            "ratio",
            lambda: measure_decode(params, work, 64, "without kernels", bandwidth),
        )


def _train(quick: bool) -> Iterator[Measurement]:
    work = plan.QUICK_TRAIN if quick else plan.TRAIN
    params = init_params(jax.random.key(0), work.shape)
    for name, rows in work.rows.items():
        yield f"train_mfu_{name}", "mfu", lambda rows=rows: measure_train(params, work, rows)


def _swap(quick: bool) -> Iterator[Measurement]:
    yield "swap_ms", "swap_ms", lambda: measure_swap(HALF_BILLION)


PARTS = {"decode": _decode, "train": _train, "swap": _swap}


def _found() -> dict[str, str | None]:
    """The versions of the installed libraries."""
    versions: dict[str, str | None] = {}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = None
    return versions


def _say(finding: dict[str, Any]) -> None:
    print(json.dumps(finding), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
