"""What real runs compare: workloads, each under several schedules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ale_jax.system.simulation.run import Setup, simulate
from benchmarks.asynchrony.runs import Arm
from benchmarks.asynchrony.workloads import (
    DEADLINES,
    UPDATE_SHARE,
    Draw,
    agentic,
    course_of,
    faulty,
    tail,
)

CALIBRATED_STEPS = 40  # of a simulated rollout without updates


@dataclasses.dataclass(frozen=True)
class Schedule:
    """changes: of the case's setup. steps: that count, after `warm` ones. barrier: as of `Arm`."""

    changes: Mapping[str, Any]
    steps: int
    warm: int = 1
    barrier: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
    """A workload, and its schedules, the first of which the others are compared with. scale: of its
    time. update_share: of a synchronous rollout."""

    draw: Draw
    setup: Setup
    scale: float
    schedules: Mapping[str, Schedule]
    update_share: float = UPDATE_SHARE

    def arm(self, name: str) -> Arm:
        """Returns a run of the schedule of that name."""
        plan = self.schedules[name]
        update = {"update_seconds": self._update_seconds}
        setup = dataclasses.replace(self.setup, **update | dict(plan.changes))
        return Arm(self.draw, setup, self.scale, plan.warm + plan.steps, plan.warm, plan.barrier)

    @functools.cached_property
    def _update_seconds(self) -> float:
        rollout = simulate(self.setup, course_of(self.draw), CALIBRATED_STEPS, seed=0)
        return self.update_share * rollout.seconds_per_step


CASES = {
    "agentic": Case(
        agentic,
        Setup(16, 8, 128, 0.0),
        1 / 10,
        {"alpha 0": Schedule({}, 8), "alpha 2": Schedule({"alpha": 2.0}, 16, warm=4)},
    ),
    "tail": Case(
        tail,
        Setup(16, 8, 32, 0.0),
        1 / 50,
        {
            "alpha 0": Schedule({}, 12),
            "drop": Schedule({"alpha": 1.0, "stragglers": "drop"}, 20, warm=3),
            "wait": Schedule({"alpha": 1.0}, 10, warm=3),
        },
    ),
    "no_barrier": Case(
        agentic,
        Setup(16, 8, 128, 0.0),
        1 / 10,
        {"barrier": Schedule({}, 2, barrier=True), "none": Schedule({}, 2)},
        update_share=0.0,
    ),
    "redundancy": Case(
        faulty,
        Setup(32, 8, 324, 0.0, stragglers="drop", deadlines=DEADLINES),
        1 / 10,
        {
            "32 x 8": Schedule({}, 5),
            "36 x 9": Schedule({"redundant_groups": 4, "redundant_members": 1}, 12),
        },
    ),
}


def quick(case: Case) -> Case:
    """Returns a small case, whose figures mean nothing."""
    setup = dataclasses.replace(case.setup, groups_per_step=2, group_size=2, places=9)
    if case.setup.places == 128:  # a barrier is for all places
        setup = dataclasses.replace(setup, places=4)
    schedules = {name: _quick(each) for name, each in case.schedules.items()}
    return dataclasses.replace(case, setup=setup, scale=case.scale / 20, schedules=schedules)


def _quick(plan: Schedule) -> Schedule:
    few = {name: 1 for name in plan.changes if name.startswith("redundant_")}
    return dataclasses.replace(plan, changes={**plan.changes, **few}, steps=4, warm=1)
