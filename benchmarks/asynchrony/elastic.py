"""Are eight devices faster if some change sides? The `tail` workload under three plans:

- colocated: all devices learn and sample. Their programs take turns, so that while an update is
  made beside 32 episodes both are half as fast, and beside fewer the update is less slowed down.
- split: 1 to 7 devices only sample, and the others only learn.
- elastic: split, and 1 to all but one of the engines lend their devices by `Lending`.

An engine has one device. An episode is one reply, so that it does nothing but sample. An update is
as fast as it has devices. A decode step takes DECODE_MS: one H100 with 16 layers of Qwen3-30B-A3B
(the ratios of benchmarks.policy_gpu, times its floors). What moves and dispatches take is left out.

Each plan divides the devices as is fastest with some seeds, and is compared with others. No lending
rule can beat the bound: seven devices learn, and seven sample at the same time.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ale_jax.system.lending import Lending
from ale_jax.system.simulation.engines import Engines
from ale_jax.system.simulation.observed import Outcome
from ale_jax.system.simulation.run import Setup, simulate
from ale_jax.system.simulation.sides import LentDevices
from ale_jax.system.simulation.world import Crowding
from benchmarks.asynchrony.workloads import UPDATE_SHARE, course_of, tail

DEVICES = 8
DECODE_MS = {16: 8.26, 128: 11.57}  # of so many conversations
SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "alpha 1, drop": {"alpha": 1.0, "stragglers": "drop"},
    "alpha 1, wait": {"alpha": 1.0},
    "alpha 0": {},
}
COLOCATED, SPLIT, ELASTIC, BOUND = "colocated", "split", "elastic", "bound"
FIGURES = ("over_split", "over_colocated", "bound")
BEGIN = 5  # steps that do not count


def _slower_by_another() -> float:
    """Returns by which share of a step alone another conversation prolongs it."""
    (few, fast), (many, slow) = DECODE_MS.items()
    each = (slow - fast) / (many - few)
    return each / (fast - (few - 1) * each)


SLOWER = _slower_by_another()


class Division(NamedTuple):
    """engines: of one device each. learning: devices. lent: of them, devices of engines."""

    plan: str
    engines: int
    learning: int
    lent: int = 0

    @property
    def told(self) -> str:
        return f"{self.engines} engines" + f", {self.lent} lent" * bool(self.lent)


def divisions() -> Iterator[Division]:
    """Yields the ways of dividing the devices, under all plans."""
    yield Division(COLOCATED, DEVICES, DEVICES)
    yield Division(BOUND, DEVICES - 1, DEVICES - 1)
    for engines in range(1, DEVICES):
        yield Division(SPLIT, engines, DEVICES - engines)
        for lent in range(1, engines):
            yield Division(ELASTIC, engines, DEVICES - engines, lent)


def setup_of(base: Setup, division: Division) -> Setup:
    """Returns a run with a division. base: whose update is on all devices."""
    crowding = dataclasses.replace(base.crowding, engines=Engines(division.engines))
    if division.plan == COLOCATED:
        crowding = dataclasses.replace(crowding, update=1.0, learner=1.0 / base.places)
    lent = None
    if division.lent:
        lending = Lending(division.engines, division.lent, base.places)
        lent = LentDevices(lending, 1.0 + division.lent / division.learning)
    seconds = base.update_seconds * DEVICES / division.learning
    return dataclasses.replace(base, update_seconds=seconds, crowding=crowding, lent=lent)


def measure(is_quick: bool) -> dict[str, Any]:
    """Returns elastic_over_split_sim, elastic_over_colocated_sim and elastic_bound_sim of the first
    schedule, and all that `compare` returns of each as elastic_schedules."""
    base = Setup(16, 8, 32, 0.0, crowding=Crowding(SLOWER))
    steps, seeds = 30, 2
    if is_quick:
        base = dataclasses.replace(base, groups_per_step=4, group_size=2, places=8)
        steps, seeds = 4, 1
    schedules = {
        name: compare(dataclasses.replace(base, **changes), steps, seeds, name)
        for name, changes in SCHEDULES.items()
    }
    first, *_ = schedules.values()
    found = {f"elastic_{name}_sim": first[name] for name in FIGURES}
    return found | {"elastic_schedules": schedules}


def compare(base: Setup, steps: int, seeds: int, name: str) -> dict[str, Any]:
    """Returns the seconds of a step under split and colocated plans over those under elastic ones,
    those under the better of these two over the bound, and the divisions. name: to be printed."""
    runs = [_run(base, seed, steps) for seed in range(2 * seeds)]
    known, others = runs[:seeds], runs[seeds:]
    tried = {each: _seconds([run(each) for run in known]) for each in divisions()}
    seconds, told = {}, {}
    for plan in (COLOCATED, SPLIT, ELASTIC, BOUND):
        division = min((each for each in tried if each.plan == plan), key=tried.__getitem__)
        outcomes = [run(division) for run in others]
        seconds[plan], told[plan] = _seconds(outcomes), division.told
        print(f"{name}: {plan:9} {division.told:17} {_row(outcomes)}", flush=True)
    best = min(seconds[SPLIT], seconds[COLOCATED])
    return {
        "over_split": round(seconds[SPLIT] / seconds[ELASTIC], 3),
        "over_colocated": round(seconds[COLOCATED] / seconds[ELASTIC], 3),
        "bound": round(best / seconds[BOUND], 3),
        "split": told[SPLIT],
        "elastic": told[ELASTIC],
    }


def _run(base: Setup, seed: int, steps: int) -> Callable[[Division], Outcome]:
    """Returns what simulates a run with a division, by one seed."""
    course = course_of(tail)
    together = setup_of(base, Division(SPLIT, DEVICES, DEVICES))
    synchronous = dataclasses.replace(together, alpha=0.0, stragglers="wait")
    rollout = simulate(synchronous, course, steps, seed).seconds_per_step
    timed = dataclasses.replace(base, update_seconds=UPDATE_SHARE * rollout)
    return lambda division: simulate(setup_of(timed, division), course, steps, seed, BEGIN)


def _seconds(outcomes: Sequence[Outcome]) -> float:
    return statistics.mean(each.seconds_per_step for each in outcomes)


def _row(outcomes: Sequence[Outcome]) -> str:
    def mean(name: str) -> float:
        return statistics.mean(getattr(each, name) for each in outcomes)

    return (
        f"{_seconds(outcomes):6.1f} s a step, places busy {mean('places_busy'):.0%}, learner "
        f"{mean('learner_busy'):.0%}, stale {mean('stale_share'):.1%}, updates lent "
        f"{mean('lent_share'):.0%}"
    )
