"""Runs of several processes, started as a user starts them, with virtual devices of the CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from ale_jax.learn.manifest import state_folder
from benchmarks.survival import evidence
from benchmarks.survival.plan import LEARNS
from benchmarks.survival.processes import Process
from benchmarks.survival.runs import QUICK_COMPILE, Bench, Run

DEVICES_EACH = 2
# Of float32. Metrics that are differences of log-probabilities are as inexact as these are.
RTOL, ATOL, DIFFERENCE_ATOL = 1e-5, 1e-6, 1e-5
DIFFERENCE = "logp_diff"  # in their names
COMPARED = (*LEARNS, "--config.rl.alpha=0.0")  # synchronous, so that runs can be compared
PROCESS = "--process="


def start(
    bench: Bench, name: str, processes: int, devices: int, options: tuple[str, ...], **config: str
) -> Run:
    """A run on `processes` processes, which have `devices` devices together."""
    run = bench.run(name, *options, f"--spawn={processes}", **config)
    each = f"--xla_force_host_platform_device_count={devices // processes}"
    run.variables["XLA_FLAGS"] = f"{each} {QUICK_COMPILE}"
    run.start()
    return run


def processes_of(run: Run) -> dict[int, Process]:
    """Those that train, by their number."""
    found = {}
    for process in run.family.all():
        words = process.words()
        if "ale_jax.launch" in words:
            number = next((word for word in words if word.startswith(PROCESS)), f"{PROCESS}0")
            found[int(number.removeprefix(PROCESS))] = process
    return found


def differences(folder: Path, other: Path) -> list[str]:
    """What differs in the metrics of two runs, beyond rounding."""
    ours, theirs = evidence.untimed_metrics(folder), evidence.untimed_metrics(other)
    if len(ours) != len(theirs):
        return [f"{len(ours)} steps, not {len(theirs)}"]
    return [
        f"step {line['step']}: {name}"
        for line, expected in zip(ours, theirs, strict=True)
        for name in line.keys() | expected.keys()
        if not _is_close(name, line.get(name), expected.get(name))
    ]


def _is_close(name: str, value: Any, expected: Any) -> bool:
    if isinstance(value, float) and isinstance(expected, float):
        absolute = DIFFERENCE_ATOL if DIFFERENCE in name else ATOL
        return math.isclose(value, expected, rel_tol=RTOL, abs_tol=absolute)
    return value == expected


def learned(folder: Path) -> bool:
    return any(line.get("grad_norm", 0.0) > 0 for line in evidence.metrics(folder))


def farthest_weight(folder: Path, other: Path) -> float:
    """The largest difference of two numbers in the newest states of two runs."""
    ours, theirs = map(_newest_state, (folder, other))
    gaps = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b, dtype=float)).max(), ours, theirs)
    return float(max(jax.tree.leaves(gaps)))


def _newest_state(folder: Path) -> Any:
    path = state_folder(evidence.checkpoints(folder)[evidence.newest_checkpoint(folder)])
    reader = ocp.PyTreeCheckpointer()
    tree = reader.metadata(path).item_metadata.tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return reader.restore(path, restore_args=as_numpy)
