"""The record of a step from which an asynchronous run can be replayed."""

from __future__ import annotations

import itertools

from ale_jax.data.replay import Group
from ale_jax.data.staleness import age
from ale_jax.monitor.schedule import ScheduledGroup, ScheduledStep
from ale_jax.records import Trajectory
from ale_jax.system.step_metrics import StepReport


def step_schedule(report: StepReport) -> ScheduledStep:
    """The order, the versions and the ages of a step's groups. All of them came through a gate."""
    version = report.cursor.step - 1
    return ScheduledStep(
        step=report.cursor.step,
        groups=tuple(_scheduled(group, version) for group in report.groups),
        dropped=tuple((dropped.index, dropped.reason.value) for dropped in report.dropped),
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
