"""How fast are our engine and learner on this CPU, compared with peers in the same run?

    python -m benchmarks.policy_cpu --peers FOLDER [--rounds N]
    python -m benchmarks.policy_cpu --quick

All contenders have the same float32 weights. Generation is the whole call for 8 prompts of 64
tokens, with exactly 64 tokens written for each. Training is one GRPO step with AdamW on all
weights, on 8 rows of 128 tokens. The policies are dense (E0), with 16 experts of which 4 are chosen
(E16), and with 64 experts of which 8 are chosen (E64). Each measurement runs in a separate process,
and in each round all contenders are measured one after another. It also measures how long a swap of
0.5 B weights takes in the engine, and whether a reply is lost.

FOLDER holds the peers' scripts (make_ckpt.py, bench_NAME.py) and their environments
(venvs/NAME). --quick ends within a minute: only ours, few calls, no swap.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.params import Param, Params, is_param, param_table
from ale_jax.model.weights.export import export
from benchmarks.policy_cpu import contenders
from benchmarks.policy_cpu.contenders import OURS, Row
from benchmarks.policy_cpu.summary import compare, table
from benchmarks.policy_cpu.work import WORKS, Work
from benchmarks.weight_swap import HALF_BILLION, measure_swap

CALLS = 5  # timed calls of each process; the peers' default
QUICK_CALLS = 2
SWAP_BAR_MS = 50.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, help="the folder of their scripts and environments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if not options.quick and options.peers is None:
        parser.error("--peers is missing: give the folder of the peers, or --quick")
    result = {
        "command": f"python -m benchmarks.policy_cpu {_said(options)}",
        "hardware": _hardware(),
        **(measure_quickly() if options.quick else measure(options.peers, options.rounds)),
    }
    print(json.dumps(result))
    return 0


def measure_quickly() -> dict[str, Any]:
    rows: dict[str, dict[str, list[Row]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, work in WORKS.items():
            checkpoint = Path(folder) / name
            export(checkpoint, random_params(work.shape), work.shape)
            rows[name] = {OURS: [contenders.measure_ours(checkpoint, QUICK_CALLS)]}
    return _result(rows, absent={}, failed={}, swap=None)


def random_params(shape: PolicyShape) -> Params:
    """Random weights, drawn like those of the peers' script, without the compilation that
    `init_params` needs."""
    draw = np.random.default_rng(0)

    def array(param: Param) -> jax.Array:
        is_scale = len(param.shape) == 1
        values = np.ones(param.shape) if is_scale else draw.normal(0.0, 0.02, param.shape)
        return jax.numpy.asarray(values, jax.numpy.float32)

    return jax.tree.map(array, param_table(shape), is_leaf=is_param)


def measure(peers: Path, rounds: int) -> dict[str, Any]:
    """Measures all contenders in each round, so that other load on the machine affects all
    equally."""
    missing = contenders.absent(peers)
    for name, why in missing.items():
        print(f"{name}: not measured: {why}", flush=True)
    if len(missing) == len(contenders.PEERS):
        raise SystemExit(f"{peers} holds none of the peers: create their environments first")
    checkpoints = {name: contenders.make_checkpoint(peers, work) for name, work in WORKS.items()}
    rows = {name: {OURS: []} for name in WORKS}
    failed: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for name, work in WORKS.items():
            print(f"round {number} of {rounds}: {name}", file=sys.stderr, flush=True)
            rows[name][OURS].append(contenders.measure_ours(checkpoints[name], CALLS))
            for peer in contenders.take_part(work, missing):
                _add_peer(rows[name], failed, peers, peer, name, work)
    swap = measure_swap(HALF_BILLION)
    return _result(rows, missing, failed, swap)


def _add_peer(
    rows: dict[str, list[Row]],
    failed: dict[str, str],
    peers: Path,
    peer: str,
    name: str,
    work: Work,
) -> None:
    """Measures one peer. A peer that fails once is not measured again for this work, and none of
    its rounds counts."""
    place = f"{peer} at {name}"
    if place in failed:
        return
    try:
        rows.setdefault(peer, []).append(contenders.measure_peer(peers, peer, work, CALLS))
    except RuntimeError as error:
        print(f"{place}: failed: {error}", flush=True)
        failed[place] = str(error)
        rows.pop(peer, None)


def _result(
    rows: dict[str, dict[str, list[Row]]],
    absent: dict[str, str],
    failed: dict[str, str],
    swap: dict[str, Any] | None,
) -> dict[str, Any]:
    """Prints the tables, and returns the whole result."""
    comparisons = {name: compare(found, WORKS[name].bars) for name, found in rows.items()}
    for name, comparison in comparisons.items():
        print("\n".join(table(name, comparison)))
    if swap is not None:
        met = swap["swap_ms"] <= SWAP_BAR_MS and swap["replies_lost"] == 0
        swap |= {"bar_ms": SWAP_BAR_MS, "met": met}
        print(f"swap of 0.5 B weights: {swap}")
    every = {name: row for found in rows.values() for name, each in found.items() for row in each}
    return {
        "versions": {name: row["versions"] for name, row in every.items()},
        "shapes": {name: dataclasses.asdict(WORKS[name].shape) for name in rows},
        "results": comparisons,
        "load_by_round": {
            name: [row["load"] for row in found[OURS]] for name, found in rows.items()
        },
        "absent": absent,
        "failed": failed,
        "swap": swap,
    }


def _said(options: argparse.Namespace) -> str:
    # The path of the peers' folder differs between machines.
    return "--quick" if options.quick else f"--peers FOLDER --rounds {options.rounds}"


def _hardware() -> str:
    return f"{os.cpu_count()} CPU cores, {platform.machine()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
