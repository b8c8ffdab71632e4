"""What does the extra forward pass for attention credit cost, relative to the training step?

    python -m benchmarks.attention_credit [--quick]

For each policy, the whole stage of a step (selection, packing, the pass, the credit) is timed
against the training step on the same trajectories, alternately in one process. It is timed twice:
with half of the trajectories above their baseline, as with outcome credit, and with all of them, as
is possible with critics. --quick: only the quickstart's policy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import jax
from jax.sharding import Mesh

from ale_jax.config.attention_credit import AttentionCreditHypers
from ale_jax.config.hardware import MeshShape
from ale_jax.learn.attention_credit import make_attention_credit
from ale_jax.model.attention_credit import middle_layers
from ale_jax.model.sharding import make_mesh
from benchmarks.credit_step import Training, Work, about, spread, step_batches, timed, works

ROUNDS, QUICK_ROUNDS = 9, 3
SHARES = {"half": 0.5, "all": 1.0}
BAR = 0.25


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(arguments).quick
    mesh, rounds = make_mesh(MeshShape()), QUICK_ROUNDS if quick else ROUNDS
    results = {}
    print(f"{'policy':15}{'positive':>9}{'step s':>9}{'credit s':>10}{'ratio':>7}{'by round':>15}")
    for work in works(quick):
        training = Training(work, mesh)
        results[work.name] = {
            "layers": middle_layers(work.policy.num_layers, AttentionCreditHypers.layers)
        }
        for name, share in SHARES.items():
            found = results[work.name][name] = measure(work, share, rounds, mesh, training)
            low, high = found["ratio_by_round"][0], found["ratio_by_round"][-1]
            print(
                f"{work.name:15}{name:>9}{found['step']['median_s']:9.3f}"
                f"{found['attention_credit']['median_s']:10.3f}{found['ratio']:7.3f}{low:8.3f}-{high:.3f}"
                f"  bar {BAR}: {'met' if found['met'] else 'MISSED'}",
                flush=True,
            )
    command = "python -m benchmarks.attention_credit" + (" --quick" if quick else "")
    print(json.dumps(about(command) | {"bar": BAR, "rounds": rounds, "results": results}))
    return 0


def measure(
    work: Work, positive_share: float, rounds: int, mesh: Mesh, training: Training
) -> dict[str, Any]:
    """ratio: of the medians. ratio_by_round: in ascending order."""
    batches = step_batches(work, positive_share)
    hp = AttentionCreditHypers(credit="coupled")
    stage = make_attention_credit(work.policy, hp, work.shape.chunks_per_pack, mesh)
    key = jax.random.key(0)
    seconds = timed(
        {
            "step": lambda: training(batches),
            "attention_credit": lambda: stage(training.state.params, batches, key),
        },
        rounds,
    )
    each = [r / s for r, s in zip(seconds["attention_credit"], seconds["step"], strict=True)]
    ratio = statistics.median(seconds["attention_credit"]) / statistics.median(seconds["step"])
    return {
        "microbatches": len(batches),
        "step": spread(seconds["step"]),
        "attention_credit": spread(seconds["attention_credit"]),
        "ratio": round(ratio, 3),
        "ratio_by_round": sorted(round(r, 3) for r in each),
        "met": ratio <= BAR,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
