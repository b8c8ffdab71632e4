"""Compares arms of an experiment seed by seed, and tabulates them."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.evaluation.stopping import LOOKS, decided, paired
from benchmarks.experiments.figures import RunFigures

DEFINITIONS: Mapping[str, str] = {
    "paired_difference, paired_error": "mean and standard error over seeds of `statistic`, less "
    "that of the reference arm with the same seed; None if fewer than two seeds have both",
    "p_value": "of the paired difference, by a two-sided t test",
    "decided": "whether p_value is at most the level of this look: "
    + ", ".join(f"{level:g} after {seeds} seeds" for seeds, level in LOOKS.items())
    + "; None after any other number of seeds",
    "against": "the same four figures, less each of the experiment's rivals",
}


def compare(
    runs: Sequence[RunFigures], reference: Sequence[RunFigures], statistic: str
) -> dict[str, Any]:
    """`statistic` ("area", "final") less that of the reference arm, paired by seed; see
    DEFINITIONS."""
    value = operator.attrgetter(statistic)
    theirs = {run.seed: value(run) for run in reference}
    differences = [value(run) - theirs[run.seed] for run in runs if run.seed in theirs]
    if len(differences) < 2:
        return dict.fromkeys(("paired_difference", "paired_error", "p_value", "decided"))
    found = paired(differences)
    return {
        "paired_difference": found.mean,
        "paired_error": found.error,
        "p_value": found.p_value,
        "decided": decided(found.p_value, len(differences)),
    }


def table(found: Mapping[str, Any]) -> str:
    """A Markdown table of a result, with one row per arm. Rates and differences are in percent."""
    arms = found["arms"]
    rivals = next(iter(arms.values()))["against"] if arms else {}
    heads = ["arm", "final success, mean ± std", "by seed", "after the warm start"]
    heads += [f"{found['statistic']} less {name}" for name in (found["reference"], *rivals)]
    heads += ["spikes", "collapsed", "mean age", "minutes a run"]
    rows = [heads, ["---"] * len(heads), *(_row(name, arm) for name, arm in arms.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(name: str, arm: Mapping[str, Any]) -> list[str]:
    runs = arm["runs"]
    spread = "" if arm["std"] is None else f" ± {100 * arm['std']:.1f}"
    age = statistics.fmean(run["mean_staleness"] for run in runs)
    minutes = statistics.fmean(run["seconds"] for run in runs) / 60
    return [
        name,
        f"{100 * arm['mean']:.1f}{spread}",
        ", ".join(f"{100 * run['final']:.1f}" for run in runs),
        ", ".join(f"{100 * run['warm_start']:.1f}" for run in runs),
        *(_difference(compared) for compared in (arm, *arm["against"].values())),
        str(arm["spikes"]),
        f"{arm['collapsed']} of {len(runs)}",
        f"{age:.2f}",
        f"{minutes:.1f}",
    ]


def _difference(compared: Mapping[str, Any]) -> str:
    """Empty if there is nothing to compare, or if an arm is compared with itself."""
    mean, error = compared["paired_difference"], compared["paired_error"]
    if mean is None or mean == error == 0.0:
        return ""
    return f"{100 * mean:+.1f} ± {100 * error:.1f}{' (decided)' if compared['decided'] else ''}"
