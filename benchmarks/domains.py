"""What does it cost that every step has the ratios of its domains exactly?

    python -m benchmarks.domains [--quick]

Simulates asynchronous runs with the real gate and buffer: workers that play groups of random
lengths, and a learner, on a clock of its own. Three domains have the ratios 5 : 2 : 1, and the
rarest one is as slow as the others, or several times slower. Each run is compared with the same
groups as one domain, from which a step takes those that are complete first. The last line of stdout
is a JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import json
import random

from ale_jax.data.quotas import ONE_DOMAIN, Quotas
from ale_jax.data.replay import GroupSize, ReplayBuffer
from ale_jax.data.staleness import StalenessGate
from ale_jax.records import TRAIN, Episode, EpisodeKey, Task, Trajectory
from ale_jax.status import Status

RATIOS, GROUPS_PER_STEP = (5, 2, 1), 8
LEARN_S, GROUP_S = 4.0, 8.0  # of a step; of a group on the average, with WORKERS at once
WORKERS = 16


@dataclasses.dataclass(frozen=True)
class Case:
    """slower: how many times longer the groups of the rarest domain take."""

    alpha: float
    slower: float
    stragglers: str


@dataclasses.dataclass(frozen=True)
class Found:
    """off: the share of steps whose groups do not have the ratios."""

    seconds_per_step: float
    off: float
    dropped_stale: int


def simulate(case: Case, quotas: Quotas, steps: int) -> Found:
    """quotas: by which the steps are composed."""
    ratios, clock, learning, off = Quotas.of_ratios(RATIOS), 0.0, False, 0
    gate = StalenessGate(case.alpha, GROUPS_PER_STEP, quotas=quotas)
    buffer = ReplayBuffer(gate, GroupSize(1), waits=case.stragglers == "wait")
    streams = [
        filter(lambda group, own=domain: quotas.domain(group) == own, itertools.count())
        for domain in quotas.domains
    ]
    flights: dict[int, int] = {}  # group -> its start version
    events: list[tuple[float, int]] = []  # when a group ends; -1: the update
    while gate.version < steps:
        while len(flights) < WORKERS and (domain := gate.next_domain()) is not None:
            group = next(streams[domain])
            assert gate.admit(group)
            seconds = random.Random(group).lognormvariate(0.0, 0.6) * GROUP_S
            seconds *= case.slower if ratios.domain(group) == 2 else 1.0
            flights[group] = gate.version
            heapq.heappush(events, (clock + seconds, group))
        if not learning and (batch := buffer.take()):
            learning = True
            step = sorted(ratios.domain(group.index) for group in batch)
            off += step != sorted(ratios.round)
            heapq.heappush(events, (clock + LEARN_S, -1))
        clock, group = heapq.heappop(events)
        if group < 0:
            learning = False
            gate.publish(gate.version + 1)
            for late in buffer.drop_overdue(flights):
                del flights[late]
        elif group in flights:
            buffer.add(_played(group, flights.pop(group)))
    return Found(clock / steps, off / steps, gate.counts()["dropped_stale"])


def _played(group: int, version: int) -> Trajectory:
    key = EpisodeKey(TRAIN, group, 0, Task("any", group, TRAIN))
    return Trajectory(Episode(key, Status.FINISHED, 1.0, 0, 0, 1.0, 0.0), (), start_version=version)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 steps instead of 1,000")
    steps = 100 if parser.parse_args().quick else 1000
    lines = []
    print("alpha  slower  stragglers  seconds a step, steps that are off: exact; first come")
    for stragglers, alpha, slower in itertools.product(("wait", "drop"), (1.0, 1.5), (1.0, 4.0)):
        case, rules = Case(alpha, slower, stragglers), (Quotas.of_ratios(RATIOS), ONE_DOMAIN)
        exact, first = (simulate(case, each, steps) for each in rules)
        told = "; ".join(f"{it.seconds_per_step:.2f} s, {it.off:.1%}" for it in (exact, first))
        print(f"{alpha:5} {slower:7} {stragglers:>11}  {told}", flush=True)
        found = {"exact": dataclasses.asdict(exact), "first_come": dataclasses.asdict(first)}
        time_ratio = exact.seconds_per_step / first.seconds_per_step
        lines.append({**dataclasses.asdict(case), **found, "time_ratio": round(time_ratio, 4)})
    print(json.dumps({"cases": lines}))


if __name__ == "__main__":
    main()
