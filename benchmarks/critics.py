"""What do two mini critics cost, compared with one critic as large as the policy?

    python -m benchmarks.critics [--quick]

For each policy, it measures the bytes of the critics' weights and moments, of the gradient, and of
the temporaries of the compiled gradient program. It also measures the seconds of a step's credit
(values and GAE) and learning (one update), alternately in one process, with the policy's training
step for scale. --quick: only the quickstart's policy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.critics import CriticsHypers
from ale_jax.config.hardware import MeshShape
from ale_jax.learn.critics import Critics, ValueBatch, critic_gradient, learn_values
from ale_jax.learn.rows import to_device
from ale_jax.learn.step import ModelSpec
from ale_jax.learn.token_credit import credit_by_critics
from ale_jax.model.compute import EXACT
from ale_jax.model.params import count_params
from ale_jax.model.sharding import make_mesh
from ale_jax.records import Batch
from benchmarks.credit_step import ADAMW, Training, Work, about, spread, step_batches, timed, works
from benchmarks.laboratory.credit import arm

ROUNDS, QUICK_ROUNDS = 9, 3
BALANCE_WEIGHT = 1e-3
PPO = arm("ppo").algo
ONE_LARGE = CriticsHypers(count=1, optimizer=ADAMW)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(arguments).quick
    mesh, rounds = make_mesh(MeshShape()), QUICK_ROUNDS if quick else ROUNDS
    results = {}
    print(f"{'policy':15}{'critics':12}{'MB held':>9}{'MB peak':>9}{'credit s':>10}{'learn s':>9}")
    for work in works(quick):
        results[work.name] = found = measure(work, rounds, mesh)
        for name in ("two mini", "one large"):
            memory, seconds = found[name]["bytes"], found[name]["seconds"]
            print(
                f"{work.name:15}{name:12}{memory['held'] / 1e6:9.2f}{memory['peak'] / 1e6:9.2f}"
                f"{seconds['credit']['median_s']:10.3f}{seconds['learn']['median_s']:9.3f}"
            )
        print(
            f"{work.name:15}{'ratio':12}{found['held_ratio']:9.2f}{found['peak_ratio']:9.2f}"
            f"{found['seconds_ratio']:19.2f} (policy's step: {found['step']['median_s']:.3f} s)",
            flush=True,
        )
    command = "python -m benchmarks.critics" + (" --quick" if quick else "")
    print(json.dumps(about(command) | {"rounds": rounds, "results": results}))
    return 0


def measure(work: Work, rounds: int, mesh: Mesh) -> dict[str, Any]:
    """Ratios are of two mini critics to a large one; seconds_ratio is for credit plus learning."""
    batches, training = step_batches(work, 0.5), Training(work, mesh)
    mini = dataclasses.replace(ONE_LARGE, count=2, mask_share=0.2, entropy_share=0.2, **work.mini)
    model = ModelSpec(work.policy, mesh, balance_weight=BALANCE_WEIGHT)
    every = {
        name: Critics.make(hp, model, training.state.params, jax.random.key(0))
        for name, hp in (("two mini", mini), ("one large", ONE_LARGE))
    }
    calls = {"step": lambda: training(batches)}
    for name, critics in every.items():
        calls[f"{name} credit"] = lambda critics=critics: _credit(critics, batches)
        calls[f"{name} learn"] = lambda critics=critics: _learn(critics, batches)
    seconds = timed(calls, rounds)
    found: dict[str, Any] = {"policy_weights": count_params(work.policy)[0]}
    for name, critics in every.items():
        hp = mini if name == "two mini" else ONE_LARGE
        found[name] = {
            "weights_each": sum(x.size for x in jax.tree.leaves(critics.state[0].params)),
            "bytes": memory_of(critics, hp.shape(work.policy), batches[0], mesh),
            "seconds": {part: spread(seconds[f"{name} {part}"]) for part in ("credit", "learn")},
        }
    two, one = found["two mini"]["bytes"], found["one large"]["bytes"]
    both = {
        name: list(map(sum, zip(seconds[f"{name} credit"], seconds[f"{name} learn"], strict=True)))
        for name in every
    }
    medians = {name: statistics.median(each) for name, each in both.items()}
    return found | {
        "microbatches": len(batches),
        "step": spread(seconds["step"]),
        "held_ratio": round(two["held"] / one["held"], 3),
        "peak_ratio": round(two["peak"] / one["peak"], 3),
        "seconds_ratio": round(medians["two mini"] / medians["one large"], 3),
        "seconds_ratio_by_round": sorted(
            round(a / b, 3) for a, b in zip(both["two mini"], both["one large"], strict=True)
        ),
    }


def _credit(critics: Critics, batches: list[Batch]) -> list[Batch]:
    return credit_by_critics(batches, critics.values(batches), critics.hp, PPO)[0]


def _learn(critics: Critics, batches: list[Batch]) -> None:
    learn_values(batches, critics.hp, PPO, critics.update)
    jax.block_until_ready(critics.state)


def memory_of(critics: Critics, shape: PolicyShape, batch: Batch, mesh: Mesh) -> dict[str, int]:
    """weights and moments of all critics, which are held; gradient and temporary of one at a time;
    peak: their sum."""
    batch = ValueBatch(
        batch.tokens_BT,
        batch.position_BT,
        batch.segment_BT,
        batch.read_BR,
        np.zeros(batch.chunk_BT.shape, np.float32),
        batch.chunk_BT >= 0,
    )
    params = critics.state[0].params
    model = ModelSpec(shape, mesh, balance_weight=BALANCE_WEIGHT)
    program = jax.jit(critic_gradient(model), compiler_options=EXACT)
    with jax.set_mesh(mesh):
        args = params, params, to_device(batch, mesh), np.float32(1.0), 1.0
        temporary = program.lower(*args).compile().memory_analysis().temp_size_in_bytes
    found = {
        "weights": _bytes([state.params for state in critics.state]),
        "moments": _bytes([state.opt_state for state in critics.state]),
        "gradient": _bytes(params),
        "temporary": temporary,
    }
    return found | {"held": found["weights"] + found["moments"], "peak": sum(found.values())}


def _bytes(tree: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
