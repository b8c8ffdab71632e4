"""Draws the results of an experiment, from benchmarks/results/experiments/NAME.json.

    python -m benchmarks.experiments.picture NAME [--out=docs/images/experiment_NAME.png]

Draws training success against episodes, with one line per arm, and the final success on unseen
tasks. For arms that differ in alpha, it draws the final success against alpha, and what each seed
loses. With Sequential Rollback, it also draws where episodes start. Error bars are one standard
error. Needs matplotlib (pip install '.[notebooks]').
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ale_jax.config.resampling import ROLLBACK
from ale_jax.files import read_json
from benchmarks.experiments.__main__ import RESULTS
from benchmarks.experiments.catalogue import EXPERIMENTS
from notebooks import style

ALPHA, SCHEME = "rl.alpha", "resampling.scheme"
MOST_BANDS = 4  # the bands of more arms hide each other
# Colour and line: the arms beyond the colours are dashed.
LOOKS = [(colour, line) for line in ("-", "--") for colour in style.SERIES]
Arms = Mapping[str, Mapping[str, Any]]
ByAlpha = Mapping[float, Mapping[int, float]]  # percent or percentage points, by seed


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments.picture", description=__doc__.splitlines()[0]
    )
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    source = RESULTS / f"{options.experiment}.json"
    if not source.exists():
        parser.error(f"{source} is missing: python -m benchmarks.experiments {options.experiment}")
    matplotlib.use("Agg")
    style.use()
    out = options.out or Path(f"docs/images/experiment_{options.experiment}.png")
    figure = draw(read_json(source))
    # Without the version of matplotlib, so that equal results give equal files.
    figure.savefig(out, metadata={"Software": None})
    print(out)
    return 0


def draw(found: Mapping[str, Any]) -> Figure:
    """`found`: a file of RESULTS. ValueError if it has more arms than there are LOOKS."""
    arms: Arms = found["arms"]
    by_alpha = all(ALPHA in arm["overrides"] for arm in arms.values())
    if len(arms) > len(LOOKS) and not by_alpha:
        raise ValueError(f"{len(arms)} arms are too many for one picture: see the table")
    if by_alpha:
        figure, (finals, lost) = plt.subplots(1, 2, figsize=(13, 5))
        success = finals_by_alpha(arms)
        # Its error would be that of the seeds, which is the same for all.
        draw_against_alpha(finals, success, errors=False)
        finals.set(ylabel="success, %", title="On unseen tasks, mean of the seeds")
        losses = {name: less_the_first(each) for name, each in success.items()}
        draw_against_alpha(lost, losses, errors=True)
        lost.set(ylabel="points", title="Change against alpha 0 with the same seed")
        lost.axhline(0, color=style.FAINT, linewidth=1, zorder=0)
        figure.legend(*lost.get_legend_handles_labels(), loc="outside right center")
    elif any(arm["overrides"].get(SCHEME) == ROLLBACK for arm in arms.values()):
        figure, (starts, axes, finals) = plt.subplots(1, 3, figsize=(15, 4.5))
        draw_curves(starts, arms, "starts")
        starts.set(ylabel="chunk of the expert", title="Where training episodes start")
        draw_success(axes, arms)
        draw_finals(finals, arms)
    else:
        size = (11 if len(arms) <= len(style.SERIES) else 12.5, 4.5)
        figure, (axes, finals) = plt.subplots(1, 2, figsize=size, width_ratios=(2, 1))
        draw_success(axes, arms)
        draw_finals(finals, arms)
    figure.suptitle(found["question"], x=0.01, ha="left", weight="bold")
    return figure


def draw_success(axes: Axes, arms: Arms) -> None:
    draw_curves(axes, arms, "curve", scale=100)
    axes.set(ylabel="success in training, %", title="On the way")


def draw_curves(axes: Axes, arms: Arms, curve: str, scale: float = 1) -> None:
    """Means over seeds and, of few arms, the range between minimum and maximum. A run without the
    curve is drawn as 0."""
    for arm, (colour, line) in zip(arms.values(), LOOKS):
        episodes = [played for played, _ in arm["runs"][0]["curve"]]
        still = [(played, 0.0) for played in episodes]
        curves = [run.get(curve) or still for run in arm["runs"]]
        points = [[scale * value for _, value in seeds] for seeds in zip(*curves)]
        mean = list(map(statistics.fmean, points))
        axes.plot(episodes, mean, color=colour, linestyle=line, linewidth=2.2)
        if len(arms) <= MOST_BANDS:
            low, high = list(map(min, points)), list(map(max, points))
            axes.fill_between(episodes, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xlabel("training episodes")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)


def draw_finals(axes: Axes, arms: Arms) -> None:
    """Squares are means with their standard errors, and circles are seeds."""
    for place, (arm, (colour, _)) in enumerate(zip(arms.values(), LOOKS)):
        finals = _percent([run["final"] for run in arm["runs"]])
        error, mean = 100 * (arm["standard_error"] or 0), 100 * arm["mean"]
        axes.errorbar(mean, place, xerr=error, fmt="s", color=colour, markersize=9, linewidth=2.5)
        axes.plot(finals, [place + 0.22] * len(finals), "o", color=colour, mfc="none", markersize=6)
        axes.text(mean, place - 0.18, f"{mean:.1f}", ha="center", va="bottom", weight="bold")
    dashes = ["- - " if line == "--" else "" for _, line in LOOKS]
    names = [dash + name.replace("_", " ") for name, dash in zip(arms, dashes)]
    axes.set_yticks(range(len(arms)), names)
    for label, (colour, _) in zip(axes.get_yticklabels(), LOOKS):
        label.set(color=colour, weight="bold")  # the lines of the other pictures have no legend
    axes.grid(axis="y", visible=False)
    axes.set_ylim(len(arms) - 0.5, -0.6)
    axes.set(xlabel="success, %", title="At the end, on unseen tasks")
    axes.margins(x=0.12)


def draw_against_alpha(axes: Axes, algorithms: Mapping[str, ByAlpha], errors: bool) -> None:
    for number, ((name, by_alpha), colour) in enumerate(zip(algorithms.items(), style.SERIES)):
        aside = 0.09 * (number - (len(algorithms) - 1) / 2)  # so that bars do not overlap
        values = [list(seeds.values()) for seeds in by_alpha.values()]
        axes.errorbar(
            [place + aside for place in range(len(values))],
            list(map(statistics.fmean, values)),
            list(map(_standard_error, values)) if errors else None,
            color=colour,
            marker="o",
            markersize=7,
            linewidth=2.2,
            elinewidth=1.4,
            capsize=3,
            label=name.replace("_", " "),
        )
        axes.set_xticks(range(len(values)), [f"{alpha:g}" for alpha in by_alpha])
    axes.set_xlabel("alpha: versions that a trajectory may be old")


def finals_by_alpha(arms: Arms) -> dict[str, ByAlpha]:
    """Final success in percent, by algorithm."""
    found = {}
    for arm in arms.values():
        seeds = {run["seed"]: 100 * run["final"] for run in arm["runs"]}
        found.setdefault(arm["algorithm"], {})[arm["overrides"][ALPHA]] = seeds
    return found


def less_the_first(by_alpha: ByAlpha) -> ByAlpha:
    """Subtracts what the same seed reached with the first alpha, because seeds differ by more than
    alphas do."""
    first = next(iter(by_alpha.values()))
    return {
        alpha: {seed: final - first[seed] for seed, final in seeds.items() if seed in first}
        for alpha, seeds in by_alpha.items()
    }


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _percent(rates: Sequence[float]) -> list[float]:
    return [100 * rate for rate in rates]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
