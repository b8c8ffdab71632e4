"""What a sandbox costs: a command, a reset, files in and out, a start; in every runtime here.

For comparison, the same command as a `docker exec` of its own, through the same daemon and library.

python -m benchmarks.sandbox_latency [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import time
from collections.abc import Callable

import docker
import numpy as np
from rich.console import Console
from rich.table import Table

from ale_jax.sandbox import bubblewrap, docker_runtime
from ale_jax.sandbox.api import Runtime, Sandbox
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec

SPEC = SandboxSpec()
FILES = {f"folder/file{i}.txt": b"x" * 1000 for i in range(10)}
PROBES = {"docker": docker_runtime.probe, "bubblewrap": bubblewrap.probe}

Row = dict[str, str | float | int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    repetitions = 50 if parser.parse_args().quick else 500
    rows, reasons = [], {}
    for name, probe in PROBES.items():
        if reason := probe(SPEC):
            reasons[name] = reason
        else:
            rows += measure_runtime(pick_runtime(name, SPEC), repetitions)
    if "docker" not in reasons:
        rows.append(measure_exec(repetitions))
    show(rows, reasons)
    hardware = {"cpus": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release()}
    print(json.dumps({"benchmark": "sandbox_latency", "rows": rows, "missing": reasons} | hardware))


def measure_runtime(runtime: Runtime, repetitions: int) -> list[Row]:
    starts = max(5, repetitions // 25)
    with runtime.start(SPEC, {}) as box:
        operations: dict[str, Callable[[], object]] = {
            "session command": lambda: box.run("true"),
            "write 10 files": lambda: box.write(FILES),
            "read a file": lambda: box.read("folder/file7.txt"),
            "snapshot": box.snapshot,
            "reset and first command": lambda: reset_after_use(box),
        }
        rows = [measure(runtime.name, name, each, repetitions) for name, each in operations.items()]
    with contextlib.ExitStack() as boxes:

        def start() -> None:
            boxes.enter_context(runtime.start(SPEC, {})).run("true")

        return [*rows, measure(runtime.name, "start and first command", start, starts)]


def measure_exec(repetitions: int) -> Row:
    """One `docker exec` for every command: what a sandbox without a session would do."""
    api = docker.from_env().api
    host = api.create_host_config(network_mode="none", init=True, auto_remove=True)
    container = api.create_container(SPEC.image, ["sleep", "600"], host_config=host)["Id"]
    api.start(container)

    def run() -> None:
        process = api.exec_create(container, ["bash", "-c", "true"])["Id"]
        api.exec_start(process)
        assert api.exec_inspect(process)["ExitCode"] == 0

    try:
        return measure("docker", "exec, no session", run, max(5, repetitions // 10))
    finally:
        api.remove_container(container, force=True, v=True)


def measure(runtime: str, operation: str, act: Callable[[], object], repetitions: int) -> Row:
    act()  # the first time pays for what later ones share
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        act()
        times.append(1e3 * (time.perf_counter() - began))
    return {
        "runtime": runtime,
        "operation": operation,
        "median_ms": round(float(np.median(times)), 3),
        "p95_ms": round(float(np.percentile(times, 95)), 3),
        "repetitions": repetitions,
    }


def reset_after_use(box: Sandbox) -> None:
    box.reset()
    box.run("true")


def show(rows: list[Row], reasons: dict[str, str]) -> None:
    table = Table("runtime", "operation", "median ms", "p95 ms", "repetitions")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    for name, reason in reasons.items():
        print(f"{name} was not measured: {reason}")


if __name__ == "__main__":
    main()
