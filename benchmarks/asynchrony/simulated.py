"""Comparisons in simulated time: the scheduler, gate and buffer of a real run, and episodes that
only take time."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time

from ale_jax.config.rollout import A_DAY
from ale_jax.records import EpisodeKey
from ale_jax.status import Status
from ale_jax.system.simulation.observed import Outcome
from ale_jax.system.simulation.run import Setup, simulate, simulated
from ale_jax.system.simulation.world import Course
from benchmarks.asynchrony.workloads import (
    DEADLINES,
    UPDATE_SHARE,
    Draw,
    agentic,
    course_of,
    faulty,
    tail,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """Two schedules of one workload. changes: of the second one."""

    draw: Draw
    setup: Setup
    changes: dict[str, float | str]


CASES = {
    "agentic_sim": Case(agentic, Setup(16, 8, 128, 0.0), {"alpha": 2.0}),
    "tail_sim": Case(tail, Setup(16, 8, 32, 0.0), {"alpha": 1.0, "stragglers": "drop"}),
    "redundancy_sim": Case(
        faulty,
        Setup(32, 8, 324, 0.0, stragglers="drop", deadlines=DEADLINES),
        {"redundant_groups": 4, "redundant_members": 1},
    ),
}
QUEUE = Setup(128, 8, 128, 0.0)
CROWD = Setup(1250, 8, 10_000, 30.0, alpha=1.0)


def measure(is_quick: bool) -> dict[str, float]:
    """Returns the figures of all simulated comparisons."""
    steps, seeds = (10, 1) if is_quick else (60, 3)
    found = {name: compare(name, steps, seeds) for name in CASES}
    found["queue_sim"] = queue_gain(seeds=2 if is_quick else 20)
    crowd = dataclasses.replace(CROWD, groups_per_step=125, places=1000) if is_quick else CROWD
    found["event_cpu_us"] = round(cpu_us(crowd))
    kept = (kept_promises(seed, 100 if is_quick else 10_000) for seed in range(20))
    found["steps_kept"] = sum(kept)
    return found


def compare(name: str, steps: int, seeds: int) -> float:
    """Returns the median, over seeds, of the seconds of a step without the changes over those with
    them, and prints the last seed's runs."""
    case, gains = CASES[name], []
    for seed in range(seeds):
        course = course_of(case.draw)
        rollout = simulate(case.setup, course, steps, seed).seconds_per_step
        setup = dataclasses.replace(case.setup, update_seconds=UPDATE_SHARE * rollout)
        before = simulate(setup, course, steps, seed)
        after = simulate(dataclasses.replace(setup, **case.changes), course, steps, seed)
        gains.append(before.seconds_per_step / after.seconds_per_step)
    print(f"{name}: {case.changes}\n{_row(before)}\n{_row(after)}\n")
    return round(statistics.median(gains), 3)


def _row(outcome: Outcome) -> str:
    return (
        f"{outcome.seconds_per_step:8.1f} s a step, places busy {outcome.places_busy:.0%}, learner "
        f"{outcome.learner_busy:.0%}, age {outcome.mean_age:.2f}, stale {outcome.stale_share:.1%}"
    )


def queue_gain(seeds: int) -> float:
    """Returns the mean, over seeds, of the seconds of a step's episodes in batches over those
    without."""
    gains = []
    for seed in range(seeds):
        queued = simulate(QUEUE, course_of(tail), steps=1, seed=seed).seconds_per_step
        chance = random.Random(seed)
        batches = QUEUE.groups_per_step * QUEUE.group_size // QUEUE.places
        waited = (max(sum(tail(chance)) for _ in range(QUEUE.places)) for _ in range(batches))
        gains.append(sum(waited) / queued)
    return round(statistics.mean(gains), 3)


def kept_promises(seed: int, steps: int) -> int:
    """Returns the number of steps of a random run. AssertionError if one trains on what is too old,
    or on a group twice, or an attempt has two results or does not end."""
    chance = random.Random(seed)
    setup = Setup(
        groups_per_step=chance.randint(1, 5),
        group_size=chance.randint(1, 3),
        places=chance.randint(1, 12),
        update_seconds=chance.uniform(0.0, 30.0),
        alpha=chance.choice([0.0, 0.5, 1.0, 2.0, 3.5]),
        stragglers="drop",
        redundant_groups=chance.randint(0, 3),
        redundant_members=chance.randint(0, 2),
        deadlines=dataclasses.replace(DEADLINES, outage_seconds=A_DAY),
    )
    waits = dataclasses.replace(setup, stragglers="wait", redundant_groups=0)
    made = simulated(waits if seed % 2 else setup, stormy, steps, seed).steps
    headroom = math.floor(setup.alpha * setup.groups_per_step)
    oldest = math.ceil(headroom / setup.groups_per_step)
    for step in made:
        assert len(step.ages) == setup.groups_per_step, step
        assert min(step.ages) >= 0 and max(step.ages) <= oldest, step
        assert sum(step.ages) <= headroom, step
        assert setup.stragglers == "drop" or step.stale == 0, step
    assert [step.step for step in made] == list(range(1, steps + 1))
    return steps


def stormy(key: EpisodeKey, chance: random.Random) -> Course:
    """Draws log-normal durations, of which some never end, some are lost, and in one group of fifty
    nearly all are."""
    seconds, fate = chance.lognormvariate(2.0, 1.3), chance.random()
    if fate < 0.01:
        return Course(math.inf)
    is_outage = key.group % 50 == 49
    if fate < (0.9 if is_outage else 0.05):
        return Course(seconds, Status.SANDBOX_LOST, None)
    return Course(seconds)


def cpu_us(setup: Setup) -> float:
    """Returns the CPU microseconds of the scheduler per episode."""
    start = time.process_time()
    outcome = simulate(setup, course_of(agentic), steps=2, seed=0)
    return 1e6 * (time.process_time() - start) / outcome.episodes
