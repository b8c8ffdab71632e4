"""Reads the figures of a run from its files, and summarizes the runs of an arm."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.monitor.evaluations import (
    EVALUATIONS_FILE,
    FINAL,
    SUMMARY_FILE,
    WARM_START,
    Evaluation,
    read_evaluations,
    read_summary,
    wilson_interval,
)
from ale_jax.monitor.events import EVENTS_FILE, read_events
from ale_jax.monitor.metrics import METRICS_FILE, read_metrics
from ale_jax.system.compilation import STARTED

SPIKE_FACTOR, SPIKE_WINDOW, SPIKE_WARMUP = 5.0, 20, 5
CURVE_STEPS = 5
COLLAPSE_STEPS, COLLAPSE_SHARE = 10, 0.5

DEFINITIONS: Mapping[str, str] = {
    "final, warm_start": "share of unseen tasks solved, each attempted once from its beginning; "
    "interval: Wilson, 95 %",
    "curve": f"[episodes so far, success of training episodes], means of {CURVE_STEPS} steps",
    "area": "success of training episodes, averaged over the curve",
    "starts": "the same of the expert's chunk at which episodes start, 0: at the beginning; "
    "empty where all start there",
    "spikes": f"steps whose gradient norm before clipping is more than {SPIKE_FACTOR:g} times the "
    f"median of the {SPIKE_WINDOW} norms before it (at least {SPIKE_WARMUP})",
    "collapsed": f"the last {COLLAPSE_STEPS} steps' training success is less than "
    f"{COLLAPSE_SHARE:g} of the best {COLLAPSE_STEPS} steps', or a loss or gradient was not finite",
    "mean_staleness": "age in versions of what a step was made of, mean over steps",
    "made_with": "software and machine, by each start of the run",
    "std": "over seeds, of a sample (n - 1); standard_error: std / sqrt(n); None for one seed",
}

Curve = tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class RunFigures:
    """The figures of one finished run; see DEFINITIONS. Rates are in [0, 1]."""

    seed: int
    warm_start: float
    final: float
    final_interval: tuple[float, float]
    final_tasks: int
    curve: Curve
    grad_norm_median: float | None
    grad_norm_max: float | None
    spikes: int
    collapsed: bool
    episodes: int
    dropped_stale: int
    max_staleness: int
    mean_staleness: float
    seconds: float
    starts: Curve
    made_with: tuple[str, ...]

    @property
    def area(self) -> float:
        return statistics.fmean(success for _, success in self.curve)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunFigures:
        low, high = values["final_interval"]
        curves = {
            name: tuple((int(episodes), mean) for episodes, mean in values[name])
            for name in ("curve", "starts")
        }
        others = {"final_interval": (low, high), "made_with": tuple(values["made_with"])}
        return cls(**dict(values) | others | curves)


def read_run(workdir: Path) -> RunFigures:
    """The figures of the finished run in `workdir`. FileNotFoundError if it is not finished."""
    summary = read_summary(workdir / SUMMARY_FILE)
    evaluations = {e.name: e for e in read_evaluations(workdir / EVALUATIONS_FILE)}
    final = evaluations[FINAL].total(held_out=False)
    steps = [r for r in read_metrics(workdir / METRICS_FILE).records if r["phase"] == "rl"]
    norms = [step["grad_norm"] for step in steps if step.get("grad_norm") is not None]
    return RunFigures(
        seed=summary.seed,
        warm_start=_rate(evaluations[WARM_START]),
        final=_rate(evaluations[FINAL]),
        final_interval=wilson_interval(final.successes, final.tasks),
        final_tasks=final.tasks,
        curve=curve(steps, "success"),
        grad_norm_median=statistics.median(norms) if norms else None,
        grad_norm_max=max(norms, default=None),
        spikes=count_spikes(norms),
        collapsed=has_collapsed([s["success"] for s in steps])
        or any({"loss", "grad_norm"} & s.get("nonfinite", {}).keys() for s in steps),
        episodes=summary.episodes,
        dropped_stale=summary.trajectories_dropped_stale,
        max_staleness=summary.max_staleness,
        mean_staleness=statistics.fmean(step["staleness_mean"] for step in steps),
        seconds=summary.seconds_total,
        starts=curve(steps, "prefix_turns_mean") if "prefix_turns_mean" in steps[0] else (),
        made_with=_made_with(workdir),
    )


def _made_with(workdir: Path) -> tuple[str, ...]:
    events = read_events(workdir / EVENTS_FILE).records
    return tuple(dict.fromkeys(event.detail for event in events if event.kind == STARTED))


def _rate(evaluation: Evaluation) -> float:
    total = evaluation.total(held_out=False)
    return total.successes / total.tasks if total.tasks else math.nan


def curve(steps: Sequence[Mapping[str, Any]], metric: str) -> Curve:
    """The curve of `metric`, as in DEFINITIONS; the last point may average fewer steps."""
    points = []
    for start in range(0, len(steps), CURVE_STEPS):
        few = steps[start : start + CURVE_STEPS]
        points.append((few[-1]["episodes"], statistics.fmean(step[metric] for step in few)))
    return tuple(points)


def count_spikes(norms: Sequence[float]) -> int:
    spikes = 0
    for i in range(SPIKE_WARMUP, len(norms)):
        before = statistics.median(norms[max(0, i - SPIKE_WINDOW) : i])
        spikes += norms[i] > SPIKE_FACTOR * before
    return spikes


def has_collapsed(successes: Sequence[float]) -> bool:
    """Whether success has collapsed, as in DEFINITIONS; False for a run that is too short."""
    n = COLLAPSE_STEPS
    means = [statistics.fmean(successes[i - n : i]) for i in range(n, len(successes) + 1)]
    return bool(means) and means[-1] < COLLAPSE_SHARE * max(means)


def summarize(runs: Sequence[RunFigures]) -> dict[str, Any]:
    """The mean and spread of the final success of an arm's runs, one per seed, and the runs."""
    finals = [run.final for run in runs]
    std = statistics.stdev(finals) if len(finals) > 1 else None
    return {
        "mean": statistics.fmean(finals),
        "std": std,
        "standard_error": None if std is None else std / math.sqrt(len(finals)),
        "spikes": sum(run.spikes for run in runs),
        "collapsed": sum(run.collapsed for run in runs),
        "area": statistics.fmean(run.area for run in runs),
        "runs": [dataclasses.asdict(run) for run in sorted(runs, key=lambda run: run.seed)],
    }
