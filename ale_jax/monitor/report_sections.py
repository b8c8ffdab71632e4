"""The content of each section of the report, computed from the files of a run; no markup."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.monitor.charts import (
    Band,
    Chart,
    Dot,
    Line,
    Point,
    Scale,
    Tick,
    line_chart,
    minute_ticks,
    moving_mean,
    path,
)
from ale_jax.monitor.evaluations import (
    FINAL,
    WARM_START,
    Evaluation,
    FamilyResult,
    wilson_interval,
)
from ale_jax.monitor.metrics import STALENESS_COUNTS
from ale_jax.monitor.run_files import RunFiles

SFT, DPO, RL = "sft", "dpo", "rl"
MAX_EVENTS = 300
MAX_AGES = 64
# Sums and differences of plotted values must stay finite.
PLOT_LIMIT = 1e100

# Metric, phase, title, hint.
SMALL_CHARTS = (
    ("reward", RL, "Reward", "mean of the batch's episodes"),
    ("loss", RL, "Policy loss", "in reinforcement learning"),
    ("tokens_per_second", RL, "Tokens per second", "written by the policy"),
    ("train_tokens_per_second", RL, "Trained tokens per second", "of batches, while they update"),
    ("mfu", RL, "Model FLOPs utilisation", "of updates: arithmetic needed, by the devices' peak"),
    ("time/lent_s", RL, "Lent devices", "seconds of an update in which engines lent it theirs"),
    ("truncated", RL, "Truncated episodes", "share that a limit of turns, time or tokens ended"),
    ("staleness_mean", RL, "Staleness", "mean age at use, in versions of the weights"),
    ("inflight_groups", RL, "Groups in flight", "begun and not complete, when a step begins"),
    ("buffer_size", RL, "Groups that wait", "complete, and left for later steps"),
    ("entropy_sampled", RL, "Entropy", "of all tokens, in nats; near 0, exploration has stopped"),
    ("entropy", RL, "Entropy of trained tokens", "nats per token; easy tasks are not trained on"),
    ("kl", RL, "Divergence from the reference", "of all tokens, in nats; if it is measured"),
    ("ratio_mean", RL, "Importance ratio", "mean over chunks; 1 is on-policy"),
    ("chunks_masked", RL, "Chunks masked", "removed from the loss by the mismatch filter"),
    ("grad_norm", RL, "Gradient norm", "before clipping"),
    ("router_load_max", RL, "Busiest expert", "load relative to the mean, worst layer; 1 is even"),
    ("router_unused", RL, "Unused experts", "share that received no token in the step"),
    ("router_entropy", RL, "Router entropy", "relative to a uniform choice; 0: always one expert"),
    (
        "train_rollout_logp_diff",
        RL,
        "Train vs rollout log-probability",
        "mean difference to the engine's, with the same weights",
    ),
    (
        "old_rollout_logp_diff",
        RL,
        "Old vs rollout log-probability",
        "mean |log pi_old - log mu|, which the mismatch filter uses",
    ),
    ("loss", SFT, "Warm-start loss", "nats per token"),
    ("token_accuracy", SFT, "Warm-start accuracy", "of next tokens"),
    ("loss", DPO, "Preference loss", "mean over an update's pairs"),
    ("margin", DPO, "Preference margin", "beta times what chosen gained more than rejected"),
    ("held_out_loss", DPO, "Preference loss, held out", "mean over pairs"),
)

# Title -> label, metric of each step, hint. The two splits must not be added up: the first is wall
# time of the controller, and the second is a sum over episodes, which overlap.
TIMES = {
    "Controller, wall time": (
        ("learner", "time/learner_s", "from the step's groups to the published weights"),
        ("waiting", "time/waiting_s", "for the episodes of the next step"),
    ),
    "Episodes trained on, summed": (
        (
            "generation",
            "time/generation_s",
            "of the policy's replies, including the engine's queue",
        ),
        ("environment", "time/environment_s", "resets and steps, mostly in sandboxes"),
        ("verifier", "time/verifier_s", "grading of the episodes' outcomes"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Rate:
    """A success rate with its 95 % interval, all in percent, and the mean reward. tasks: 0 if only
    the rate is known."""

    percent: float
    low: float
    high: float
    successes: int
    tasks: int
    reward: float


@dataclasses.dataclass(frozen=True)
class FamilyRow:
    """The success rates of a family before and after training; None where it was not evaluated."""

    family: str
    before: Rate | None
    after: Rate | None


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar of a diagram. share: of the total, in percent; height: of the tallest bar, in
    percent."""

    label: str
    value: float
    share: float
    height: float


@dataclasses.dataclass(frozen=True)
class TimeSplit:
    """Where time was spent. parts: each with its hint."""

    title: str
    parts: tuple[tuple[Bar, str], ...]


@dataclasses.dataclass(frozen=True)
class SmallChart:
    """A small chart of one metric. hint: what the metric says. latest: its last value."""

    title: str
    hint: str
    latest: float
    chart: Chart


@dataclasses.dataclass(frozen=True)
class EventRow:
    """An event as it is shown. seconds: since the run's first event. tone: a class of the
    stylesheet."""

    seconds: float
    kind: str
    tone: str
    detail: str
    fields: Mapping[str, Any]


def rate(result: FamilyResult) -> Rate | None:
    """Returns success and reward of an evaluation's result; None if nothing was evaluated."""
    if result.tasks == 0:
        return None
    low, high = wilson_interval(result.successes, result.tasks)
    percent = 100 * result.successes / result.tasks
    counts = result.successes, result.tasks
    return Rate(percent, 100 * low, 100 * high, *counts, result.reward)


def before_and_after(run: RunFiles) -> tuple[Evaluation | None, Evaluation | None]:
    """Returns the evaluations named WARM_START and FINAL."""
    by_name = {evaluation.name: evaluation for evaluation in run.evaluations}
    return by_name.get(WARM_START), by_name.get(FINAL)


def learning_curve(run: RunFiles) -> Chart | None:
    """Success over the run's time: training, and evaluations with their intervals."""
    probe = series(run.phase(SFT), "probe_success")
    training = series(run.phase(RL), "success")
    if not (probe or training or run.evaluations):
        return None
    moments = [line["seconds"] / 60 for line in run.metrics]
    moments += [evaluation.seconds / 60 for evaluation in run.evaluations]
    x_scale = Scale(0.0, max(0.01, 1.02 * max(moments)))
    y_scale = Scale(0.0, 1.0, down=True)
    window = max(5, len(training) // 20)
    lines = [
        ("supervised probe", "series-sft", probe),
        ("training batch", "series-raw", training),
        (f"mean of {window} batches", "series-a", moving_mean(training, window)),
    ]
    return Chart(
        description="Success rate over the time of the run, with evaluations",
        x_ticks=minute_ticks(x_scale, 8),
        y_ticks=tuple(Tick(y_scale(v), f"{v:.0%}") for v in (0, 0.25, 0.5, 0.75, 1)),
        x_label="minutes of run time",
        lines=tuple(
            Line(label, style, path(points, x_scale, y_scale))
            for label, style, points in lines
            if points
        ),
        dots=tuple(_evaluation_dots(run.evaluations, x_scale, y_scale)),
        bands=tuple(_phase_bands(run, x_scale)),
    )


def family_rows(run: RunFiles, held_out: bool) -> list[FamilyRow]:
    """Returns the trained families, or the held-out ones, before and after reinforcement
    learning."""
    before, after = before_and_after(run)
    families: dict[str, None] = {}
    for evaluation in filter(None, (before, after)):
        families |= dict.fromkeys(
            f for f, r in evaluation.families.items() if r.held_out == held_out
        )
    return [
        FamilyRow(family, _family_rate(before, family), _family_rate(after, family))
        for family in sorted(families)
    ]


def staleness_bars(run: RunFiles) -> list[Bar]:
    """Trajectories trained on, by age; an age that never occurred shows as 0."""
    counts: collections.Counter[int] = collections.Counter()
    for line in run.metrics:
        counts.update(line.get(STALENESS_COUNTS, {}))
    counts = +counts
    if not counts:
        return []
    ages: Sequence[int] = sorted(counts)
    if ages[0] >= 0 and ages[-1] < MAX_AGES:
        ages = range(ages[-1] + 1)
    return _bars({str(age): counts[age] for age in ages})


def time_splits(run: RunFiles) -> list[TimeSplit]:
    """Returns how reinforcement learning spent its time; splits that were not recorded are left
    out."""
    splits = []
    for title, parts in TIMES.items():
        totals = {label: _total(run, RL, metric) for label, metric, _ in parts}
        if any(totals.values()):
            hints = tuple(hint for _, _, hint in parts)
            splits.append(TimeSplit(title, tuple(zip(_bars(totals), hints, strict=True))))
    return splits


def compile_seconds(run: RunFiles) -> float:
    """Seconds spent compiling, in all phases."""
    return sum(_total(run, phase, "time/compile_s") for phase in (SFT, DPO, RL))


def _total(run: RunFiles, phase: str, metric: str) -> float:
    return sum(value for _, value in series(run.phase(phase), metric))


def small_charts(run: RunFiles) -> list[SmallChart]:
    """Draws one small chart for each metric that was logged at least twice."""
    charts = []
    for metric, phase, title, hint in SMALL_CHARTS:
        points = series(run.phase(phase), metric)
        moments = [x for x, _ in points]
        if not moments or min(moments) == max(moments):
            continue
        x_range = (min(moments), max(moments))
        chart = line_chart(points, title, f"{title} over time", x_range)
        charts.append(SmallChart(title, hint, points[-1][1], chart))
    return charts


def event_counts(run: RunFiles) -> list[tuple[str, int, str]]:
    """Returns kind, count and tone of the events, the most frequent first."""
    counts = collections.Counter(event.kind for event in run.events)
    return [(kind, count, _tone(kind)) for kind, count in counts.most_common()]


def event_rows(run: RunFiles) -> list[EventRow]:
    """Returns the last MAX_EVENTS events, with the seconds since the run's first event."""
    return [
        EventRow(
            seconds=max(0.0, event.time - run.events[0].time),
            kind=event.kind,
            tone=_tone(event.kind),
            detail=event.detail,
            fields=event.fields,
        )
        for event in run.events[-MAX_EVENTS:]
    ]


def series(lines: Sequence[Mapping[str, Any]], metric: str) -> list[Point]:
    """Returns (minutes, value) of each line that has a finite value of the metric."""
    return [
        (line["seconds"] / 60, min(PLOT_LIMIT, max(-PLOT_LIMIT, line[metric])))
        for line in lines
        if line.get(metric) is not None
    ]


def _evaluation_dots(
    evaluations: Sequence[Evaluation], x_scale: Scale, y_scale: Scale
) -> list[Dot]:
    dots = []
    for evaluation in evaluations:
        for held_out, style, words in ((False, "dot-a", "trained"), (True, "dot-b", "held-out")):
            found = rate(evaluation.total(held_out))
            if found is None:
                continue
            # Both were measured at the same time; they are drawn side by side, so that their
            # intervals can be distinguished.
            x = x_scale(evaluation.seconds / 60) + (0.7 if held_out else 0.0)
            dots.append(
                Dot(
                    style=style,
                    x=x,
                    y=y_scale(found.percent / 100),
                    y_low=y_scale(found.low / 100),
                    y_high=y_scale(found.high / 100),
                    words=f"{evaluation.name}, {words} families: {found.percent:.1f} % "
                    f"({found.successes}/{found.tasks}), "
                    f"95 % interval {found.low:.1f} to {found.high:.1f} %, "
                    f"mean reward {found.reward:.3g}",
                )
            )
    return dots


def _phase_bands(run: RunFiles, x_scale: Scale) -> list[Band]:
    reinforcement = "reinforcement"
    if run.summary:
        reinforcement += f" by {run.summary.algorithm.upper()}"
    bands, left = [], 0.0
    phases = (SFT, "supervised warm start"), (DPO, "preference pairs"), (RL, reinforcement)
    for phase, words in phases:
        if lines := run.phase(phase):
            right = x_scale(lines[-1]["seconds"] / 60)
            label = f"{words}, {lines[-1]['step']:,} steps"
            bands.append(Band(f"band-{phase}", label, left, max(0.0, right - left)))
            left = right
    return bands


def _family_rate(evaluation: Evaluation | None, family: str) -> Rate | None:
    if evaluation is None or family not in evaluation.families:
        return None
    return rate(evaluation.families[family])


def _bars(values: Mapping[str, float]) -> list[Bar]:
    total, tallest = sum(values.values()), max(values.values(), default=0)
    return [
        Bar(label, value, share=100 * value / total, height=100 * value / tallest)
        for label, value in values.items()
    ]


def _tone(kind: str) -> str:
    words = set(kind.split("_"))
    if words & {
        "lost",
        "failed",
        "error",
        "killed",
        "crashed",
        "nonfinite",
        "gap",
        "stalled",
        "paused",
    }:
        return "bad"
    if words & {"resumed", "restarted", "restart", "started", "recovered"}:
        return "good"
    return "calm"
