"""A finished step, its metrics, with the names that metrics.jsonl and the report use, and its line
of the schedule."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ale_jax.algo.policy_loss import ratio_figures
from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.data.staleness import Drop, age
from ale_jax.learn.finite import SKIPPED
from ale_jax.learn.learner import Step
from ale_jax.learn.step import router_figures
from ale_jax.monitor.schedule import ScheduledGroup, ScheduledStep
from ale_jax.monitor.times import StepTimes
from ale_jax.records import Trajectory
from ale_jax.system.family_metrics import family_metrics
from ale_jax.system.reply_metrics import reply_metrics, truncation_metrics
from ale_jax.system.rollout_metrics import (
    episode_times,
    group_metrics,
    rollout_metrics,
    token_metrics,
)
from ale_jax.system.tasks import Cursor

OF_AN_UPDATE = ("loss", "balance", "grad_norm")  # sums of a train step that are means already


@dataclasses.dataclass(frozen=True)
class StepReport:
    """One finished step.

    cursor: after the step. made: the batches and credit of the step. updates: of each update, the
    sums of `make_train_step`, on the host; [] if there was nothing to learn.
    extra: metrics of the learner, the log-probability difference and the resampler.
    waiting_seconds: time spent waiting for groups.
    learner_seconds: time from the arrival of the groups to the publication of the weights.
    dropped: the groups that were dropped since the step before.
    lent_seconds: for which engines had lent their devices to the update; None if none ever do.
    weights: as in `ScheduledStep`.
    """

    cursor: Cursor
    groups: list[Group]
    made: Step
    updates: list[dict[str, np.ndarray]]
    extra: dict[str, float]
    waiting_seconds: float
    learner_seconds: float
    dropped: tuple[DroppedGroup, ...] = ()
    lent_seconds: float | None = None
    weights: str = ""

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories with a valid reward."""
        return [t for group in self.groups for t in group.valid]


def step_metrics(report: StepReport) -> dict[str, Any]:
    """Returns all metrics of a step."""
    rollouts = rollout_metrics(report.trajectories, version=report.cursor.step - 1)
    rollouts |= family_metrics(report.trajectories)
    rollouts |= group_metrics(report.groups, report.dropped)
    rollouts |= token_metrics(report.trajectories)
    rollouts |= truncation_metrics(report.trajectories)
    rollouts |= reply_metrics([t for group in report.groups for t in group.members])
    run = {
        "episodes": report.cursor.episodes,
        "policy_tokens": report.cursor.policy_tokens,
        "trajectories_with_gradient": len(report.made.samples),
        "updates": len(report.updates),
        "updates_with_gradient": sum(map(_has_gradient, report.updates)),
        "dropped_stale": report.cursor.dropped_stale,
        "dropped_failed": report.cursor.dropped_failed,
        "dropped_equal": report.cursor.dropped_equal,
    }
    times = {
        "time/waiting_s": report.waiting_seconds,
        "time/learner_s": report.learner_seconds,
        **episode_times(report.trajectories),
    }
    if report.lent_seconds is not None:
        times["time/lent_s"] = report.lent_seconds
    sums = add_updates(report.updates)
    learner = _loss_metrics(sums) | router_figures(sums)
    return rollouts | run | times | learner | report.extra


def _has_gradient(sums: Mapping[str, np.ndarray]) -> bool:
    return bool(sums["grad_norm"] > 0.0) and not sums[SKIPPED]


def add_updates(updates: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Adds the sums of a step's updates. What is already a mean over an update (OF_AN_UPDATE)
    becomes the mean over the updates.

        >>> first, second = ({"loss": np.array(x), "tokens": np.array(8)} for x in (1.0, 2.0))
        >>> {name: float(x) for name, x in add_updates([first, second]).items()}
        {'loss': 1.5, 'tokens': 16.0}
    """
    total: dict[str, np.ndarray] = {}
    for sums in updates:
        total = {name: total[name] + x for name, x in sums.items()} if total else dict(sums)
    means = {name: total[name] / len(updates) for name in OF_AN_UPDATE if name in total}
    return total | means


def _loss_metrics(arrays: dict[str, np.ndarray]) -> dict[str, float]:
    sums = {name: float(x) for name, x in arrays.items() if np.ndim(x) == 0}
    if not sums:
        return {}
    tokens = max(sums["tokens"], 1.0)
    values = {
        "loss": sums["loss"],
        "grad_norm": sums["grad_norm"],
        "skipped_updates": sums[SKIPPED],
        "balance": sums["balance"],
        "entropy": sums["entropy"] / tokens,
        "ratio_mean": sums["ratio"] / max(sums["ratios"], 1.0),
        "chunks_masked": sums["masked_chunks"],
        "masked_share": sums["masked_tokens"] / tokens,
        "clipped_share": sums["clipped_tokens"] / tokens,
        "old_rollout_logp_diff": sums["old_rollout_logp_diff"] / tokens,
        "mismatch_kl": sums["mismatch_kl"] / tokens,
        "approx_kl": sums["approx_kl"] / tokens,
        **ratio_figures(arrays),
    }
    if "observation_nll" in sums:
        observed = sums["observation_tokens"]
        values["observation_tokens"] = observed
        values["observation_loss"] = sums["observation_nll"] / max(observed, 1.0)
    return values


def step_schedule(report: StepReport) -> ScheduledStep:
    """Returns the order, versions and ages of a step's groups, for replaying an asynchronous
    run. All of them came through a gate."""
    version = report.cursor.step - 1
    return ScheduledStep(
        step=report.cursor.step,
        groups=tuple(_scheduled(group, version) for group in report.groups),
        dropped=tuple((dropped.index, dropped.reason.value) for dropped in report.dropped),
        weights=report.weights,
    )


def step_times(report: StepReport, published: float, compiled: float) -> StepTimes:
    """Returns when a step was made. published, compiled: as in `StepTimes`."""
    version = report.cursor.step - 1
    return StepTimes(
        step=report.cursor.step,
        waited=report.waiting_seconds,
        taken=published - report.learner_seconds,
        published=published,
        compiled=compiled,
        ages=tuple(age(version, group.start_version) for group in report.groups),
        stale=sum(dropped.reason == Drop.STALE for dropped in report.dropped),
        lent=report.lent_seconds or 0.0,
    )


def _scheduled(group: Group, version: int) -> ScheduledGroup:
    assert group.admission is not None, group.index
    starts = tuple(trajectory.start_version for trajectory in group.members)
    return ScheduledGroup(
        index=group.index,
        order=group.admission.order,
        version=group.admission.version,
        starts=starts,
        ages=tuple(age(version, start) for start in starts),
        versions=tuple(map(_runs, group.members)),
    )


def _runs(trajectory: Trajectory) -> tuple[tuple[int, int], ...]:
    """Versions of the sampled tokens, run-length encoded."""
    sampled = (turn.version.tolist() for turn in trajectory.sampled_turns)
    runs = itertools.groupby(itertools.chain.from_iterable(sampled))
    return tuple((version, len(list(tokens))) for version, tokens in runs)
