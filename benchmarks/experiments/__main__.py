"""Compares the arms of an experiment, with the same budget, for several seeds.

    python -m benchmarks.experiments NAME [--seeds=0,1,2] [--arms=ipa,grpo] [--quick]

All arms of a seed start from the same weights, which are the result of one warm start. Runs are
made one after another, in folders below --runs. Finished runs are not repeated, and interrupted
runs are continued. Each finished run is added to benchmarks/results/experiments/NAME.json, and to
the table in NAME.md, at once. Results that are already in this file are kept and not repeated, so
that arms can be divided among machines; a file with results of another config is refused. All arms
of a seed should be run on the same machine, because they share a warm start. The JSON contains the
config that all arms share, and the fields in which each arm differs.
--quick: one arm and one seed with two steps, which learn nothing; no result is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale_jax.config.fields import described_changes, differing_fields
from ale_jax.files import read_json, write_json
from benchmarks.experiments import comparison, figures
from benchmarks.experiments.catalogue import EXPERIMENTS, Experiment
from benchmarks.experiments.comparison import compare, table
from benchmarks.experiments.figures import RunFigures, read_run, summarize
from benchmarks.experiments.runs import Runs
from benchmarks.experiments.settings import settings, shared

RESULTS = Path("benchmarks/results/experiments")


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if a run did not finish."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments", description=__doc__.splitlines()[0]
    )
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", default=None, help="default: 0,1,2")
    parser.add_argument("--arms", default=None, help="default: all")
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    experiment, runs = EXPERIMENTS[options.experiment], Runs(options.runs, options.quick)
    seeds = _numbers(parser, options.seeds or ("0" if options.quick else "0,1,2"))
    names = (options.arms or _default_arms(experiment, options.quick)).split(",")
    try:
        arms = [experiment.arm(name) for name in names]
        known = {} if options.quick else recorded(experiment)
    except ValueError as error:
        parser.error(str(error))
    broken = []
    # Seeds are the outer loop, so that arms can be compared after the first seed.
    for seed in seeds:
        for arm in arms:
            if seed in known.get(arm.name, {}):
                continue
            try:
                runs.run(experiment, arm, seed)
            except subprocess.CalledProcessError as error:
                broken.append(f"{arm.name}, seed {seed}: exit code {error.returncode}")
            except ValueError as error:
                broken.append(f"{arm.name}, seed {seed}: {error}")
            else:
                if not options.quick:
                    _write(result(experiment, runs, known))
    found = result(experiment, runs, known)
    print(table(found))
    for line in broken:
        print(f"not finished: {line}", file=sys.stderr)
    print(json.dumps(found))
    return 1 if broken else 0


def _write(found: dict[str, Any]) -> None:
    write_json(RESULTS / f"{found['experiment']}.json", found)
    (RESULTS / f"{found['experiment']}.md").write_text(table(found) + "\n")


def _default_arms(experiment: Experiment, quick: bool) -> str:
    return ",".join(arm.name for arm in experiment.arms[: 1 if quick else None])


def _numbers(parser: argparse.ArgumentParser, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        parser.error(f"--seeds {text!r} must be numbers separated by commas, such as 0,1,2")


def recorded(experiment: Experiment) -> dict[str, dict[int, RunFigures]]:
    """The recorded results by arm and seed.

    Raises:
      ValueError: a recorded arm is no longer one, or its config has changed since. To go on would
        mix the seeds of two configs, or drop those that are recorded.
    """
    path = RESULTS / f"{experiment.name}.json"
    if not path.exists():
        return {}
    stored, found = read_json(path), {}
    if gone := stored["arms"].keys() - {arm.name for arm in experiment.arms}:
        raise ValueError(f"{path}: there is no arm {', '.join(sorted(gone))} now: move it away")
    for name, its in stored["arms"].items():
        then, now = stored["config"] | its["config"], settings(experiment, experiment.arm(name))
        if names := differing_fields(then, now):
            changed = described_changes(then, now, names)
            raise ValueError(f"{path}: {name} had another config ({changed}): move it away")
        found[name] = {run["seed"]: RunFigures.from_json(run) for run in its["runs"]}
    return found


def result(
    experiment: Experiment, runs: Runs, known: Mapping[str, Mapping[int, RunFigures]]
) -> dict[str, Any]:
    """The result of the experiment, from `known` and from all finished runs in their folders, also
    those of earlier calls."""
    configs = {arm.name: settings(experiment, arm) for arm in experiment.arms}
    common = shared(configs.values())
    every = {}
    for arm in experiment.arms:
        made = map(read_run, runs.made(experiment, arm))
        every[arm.name] = dict(known.get(arm.name, {})) | {run.seed: run for run in made}
    arms = {}
    for arm in experiment.arms:
        if done := list(every[arm.name].values()):
            compared = {
                name: compare(done, list(every[name].values()), experiment.statistic)
                for name in (experiment.reference, *experiment.rivals)
            }
            own = {n: v for n, v in configs[arm.name].items() if n not in common}
            arms[arm.name] = {
                "algorithm": arm.algorithm,
                "overrides": dict(arm.overrides),
                "config": own,
                **summarize(done),
                **compared.pop(experiment.reference),
                "against": compared,
            }
    return {
        "experiment": experiment.name,
        "question": experiment.question,
        "command": f"python -m benchmarks.experiments {experiment.name}",
        "definitions": {**figures.DEFINITIONS, **comparison.DEFINITIONS},
        "config": common,
        "reference": experiment.reference,
        "statistic": experiment.statistic,
        "arms": arms,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
