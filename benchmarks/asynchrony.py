"""What do staleness, dropped stragglers and redundant groups do for the speed of a run?

    python -m benchmarks.asynchrony [--quick] [--out=FILE]

Simulates runs (`ale_jax.system.simulation`): the scheduler, gate and buffer of a real run, and
episodes that only take time. Prints the workloads and, as JSON, for each the seconds of a step
without over those with, medians of three seeds:

- agentic_sim: five turns of max(0, N(10, 10)) s, 16 x 8 episodes in 128 places; alpha 2 over a
  synchronous run. An update takes 0.3 of a synchronous rollout.
- tail_sim: log-normal episodes whose 99th percentile is 20 times their median, 16 x 8 in 32 places;
  alpha 1, slow groups dropped, over synchronous.
- redundancy_sim: synchronous steps of 32 x 8 in 324 places, of agentic episodes of which 5 % take
  five times as long and 1 % never end, until a deadline after 400 s lets them be played again;
  36 x 9, of which the first 32 x 8 count, over none.
- queue_sim: 128 x 8 long-tailed episodes in 128 places, mean of 20 seeds: batches of 128 of which
  each waits for the one before, over ours, where an episode begins as soon as a place is free.
- steps_kept: steps of runs with random schedules, slow, hung and lost sandboxes and outages, in all
  of which the ages were as docs/staleness.md promises.
- event_cpu_us: CPU microseconds of the scheduler for an episode, with 10,000 in progress.

--quick: one seed and fewer steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path

from ale_jax.config.rollout import A_DAY, DeadlinesConfig
from ale_jax.records import TRAIN, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.system.simulation.observed import Outcome
from ale_jax.system.simulation.run import Draw, Setup, simulate, simulated
from ale_jax.system.simulation.world import Course

UPDATE_SHARE = 0.3  # of a synchronous rollout
TAIL = math.log(20) / statistics.NormalDist().inv_cdf(0.99)
SLOW_SHARE, SLOW_TIMES, HUNG_SHARE, DEADLINE_S = 0.05, 5.0, 0.01, 400.0


def agentic(key: EpisodeKey, chance: random.Random) -> Course:
    return Course(sum(max(0.0, chance.gauss(10.0, 10.0)) for _ in range(5)))


def tail(key: EpisodeKey, chance: random.Random) -> Course:
    return Course(10.0 * math.exp(chance.gauss(0.0, TAIL)))


def faulty(key: EpisodeKey, chance: random.Random) -> Course:
    seconds, fault = agentic(key, chance).seconds, chance.random()
    if fault < HUNG_SHARE:
        return Course(math.inf)
    return Course(seconds * (SLOW_TIMES if fault < HUNG_SHARE + SLOW_SHARE else 1.0))


@dataclasses.dataclass(frozen=True)
class Case:
    """Two schedules of one workload. changes: of the second one."""

    draw: Draw
    setup: Setup
    changes: dict[str, float | str]


DEADLINES = DeadlinesConfig(turn_seconds=DEADLINE_S, episode_seconds=DEADLINE_S)
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    steps, seeds = (10, 1) if args.quick else (60, 3)
    found = {name: compare(name, steps, seeds) for name in CASES}
    found["queue_sim"] = queue_gain(seeds=2 if args.quick else 20)
    crowd = dataclasses.replace(CROWD, groups_per_step=125, places=1000) if args.quick else CROWD
    found["event_cpu_us"] = round(cpu_us(crowd))
    kept = (kept_promises(seed, 100 if args.quick else 10_000) for seed in range(20))
    found["steps_kept"] = sum(kept)
    if args.out:
        args.out.write_text(json.dumps(found) + "\n")
    print(json.dumps(found))
    return 0


def compare(name: str, steps: int, seeds: int) -> float:
    """Returns the median, over seeds, of the seconds of a step without the changes over those with
    them, and prints the last seed's runs."""
    case, gains = CASES[name], []
    for seed in range(seeds):
        rollout = simulate(case.setup, case.draw, steps, seed).seconds_per_step
        setup = dataclasses.replace(case.setup, update_seconds=UPDATE_SHARE * rollout)
        before = simulate(setup, case.draw, steps, seed)
        after = simulate(dataclasses.replace(setup, **case.changes), case.draw, steps, seed)
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
        queued = simulate(QUEUE, tail, steps=1, seed=seed).seconds_per_step
        chance, key = random.Random(seed), EpisodeKey(TRAIN, 0, 0, Task("batch", 0, TRAIN))
        batches = QUEUE.groups_per_step * QUEUE.group_size // QUEUE.places
        waited = (
            max(tail(key, chance).seconds for _ in range(QUEUE.places)) for _ in range(batches)
        )
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
    outcome = simulate(setup, agentic, steps=2, seed=0)
    return 1e6 * (time.process_time() - start) / outcome.episodes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
