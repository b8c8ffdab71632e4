"""Are tasks played as they are meant, kept apart, and counted right?

    python -m benchmarks.worlds [--quick] [--libraries=reasoning_gym,gem,...] [--seeds=20]

bridges_equal: each environment of each library is played through its bridge and in the library
alone, with the same seeds and replies: observations, rewards and ends must be equal. Of bfcl, all
tasks are played with right and wrong calls, whatever --seeds says. `make gem textarena bfcl`
installs the libraries; --libraries=none leaves them out.
items_played: evaluations that are interrupted play each item and sample once. leaks: tasks that are
both trained on and evaluated, in made runs of several lives. pass_at_k_error: against exact values.
wrong_verdicts: of `compare`, about simulated pairs of policies, by their distance in points.
sft_rows: as `benchmarks.worlds.sft_rows`. step_overhead_ratio: a step's time by that of the world
alone.

--quick plays a tenth, and no library. The last line of stdout is a JSON object. Exit code 1: an
environment differs that the library itself can play and repeat, or a bar is missed.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.choices import some_of
from benchmarks.worlds import bfcl, sft_rows
from benchmarks.worlds.bridges import compare
from benchmarks.worlds.overhead import step_overhead
from benchmarks.worlds.splits import interrupted_evaluation, made_run
from benchmarks.worlds.verdicts import pass_at_k_error, wrong_verdicts

BFCL = "bfcl"
PYTHONS = {
    "reasoning_gym": ".venv-gem/bin/python",
    "gem": ".venv-gem/bin/python",
    "textarena": ".venv-textarena/bin/python",
    BFCL: ".venv-bfcl/bin/python",
}
NO_LIBRARY = "none"
RUNS, PAIRS, TRAJECTORIES = 200, 1000, 10000
MOST_WRONG, MOST_ERROR = 0.05, 1e-12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--libraries", type=some_of((*PYTHONS, NO_LIBRARY)))
    arguments = parser.parse_args()
    part = 10 if arguments.quick else 1
    libraries = arguments.libraries or ([] if arguments.quick else list(PYTHONS))
    found = {"bridges_equal": _bridges([n for n in libraries if n != NO_LIBRARY], arguments.seeds)}
    measures = {
        "items_played": lambda: _items_played(RUNS // part),
        "leaks": lambda: _leaks(RUNS // part),
        "pass_at_k_error": lambda: pass_at_k_error(RUNS // part),
        "wrong_verdicts": lambda: wrong_verdicts(PAIRS // part),
        "sft_rows": lambda: sft_rows.measure(TRAJECTORIES // part, sft_rows.trained_tokenizer()),
        "step_overhead_ratio": lambda: {
            name: each._asdict() for name, each in step_overhead().items()
        },
    }
    for name, measure in measures.items():
        found[name] = measure()
        print(f"{name:20} {found[name]}", flush=True)
    print(json.dumps(found))
    missed = _missed(found)
    for name in missed:
        print(f"missed: {name}", file=sys.stderr)
    return int(bool(missed))


def _bridges(libraries: list[str], seeds: int) -> dict[str, Any]:
    found = {}
    for library in libraries:
        start = time.monotonic()
        told = _bfcl() if library == BFCL else _games(library, seeds)
        found[library] = {**told, "seconds": round(time.monotonic() - start, 1)}
    return found


def _games(library: str, seeds: int) -> dict[str, Any]:
    told = compare(library, PYTHONS[library], seeds)
    print(f"{library}: {told.equal} of {told.environments} equal", flush=True)
    return told._asdict()


def _bfcl() -> dict[str, Any]:
    told = bfcl.compare(PYTHONS[BFCL])
    print(f"bfcl: {told.items - len(told.exceptions)} of {told.items} equal; the expected calls")
    print(f"  solve {told.gold}, through the gateway {told.gold_by_gateway}, none {told.empty}")
    return told._asdict()


def _items_played(evaluations: int) -> dict[str, int]:
    times: collections.Counter[int] = collections.Counter()
    for seed in range(evaluations):
        with tempfile.TemporaryDirectory() as folder:
            times.update(interrupted_evaluation(Path(folder), seed).values())
    return {"evaluations": evaluations, "episodes": times.total(), "once": times[1]}


def _leaks(runs: int) -> dict[str, int]:
    found: collections.Counter[str] = collections.Counter(runs=runs, leaks=0)
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            played = made_run(Path(folder), seed)
        found.update(lives=played.lives, groups=played.groups, leaks=played.leaks)
        found.update(trained=len(played.trained), evaluated=len(played.evaluated))
    return dict(found)


def _missed(found: dict[str, Any]) -> list[str]:
    """Returns the measures that miss their bars."""
    differing = [
        why for its in found["bridges_equal"].values() for why in its["exceptions"].values()
    ]
    items, verdicts = found["items_played"], found["wrong_verdicts"].values()
    missed = {
        "bridges_equal": any(not why.startswith("the library ") for why in differing),
        "items_played": items["once"] < items["episodes"],
        "leaks": found["leaks"]["leaks"] > 0,
        "pass_at_k_error": found["pass_at_k_error"] > MOST_ERROR,
        "wrong_verdicts": any(its["wrong"] > MOST_WRONG * its["pairs"] for its in verdicts),
        "sft_rows": not sft_rows.is_whole(found["sft_rows"]),
    }
    return [name for name, is_missed in missed.items() if is_missed]


if __name__ == "__main__":
    sys.exit(main())
