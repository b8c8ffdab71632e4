"""Do several processes compute what one process computes, for every algorithm?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from benchmarks.hosts.runs import (
    COMPARED,
    DEVICES_EACH,
    differences,
    farthest_weight,
    learned,
    start,
)
from benchmarks.survival.plan import NO_SANDBOXES
from benchmarks.survival.runs import Bench, NoMeasurement
from benchmarks.survival.trials import DONE

LIMIT_S = 600.0
# So that a policy that solves nothing still has gradients.
NO_BASELINE = "--config.algo.advantage.mean=none"
# They compare the members of a group, and are refused without a baseline.
OF_GROUPS = ("ipa_balanced", "gigpo", "gigpo_state", "hgpo", "tree")


@dataclasses.dataclass(frozen=True)
class Equality:
    """differing: metrics that differ beyond rounding. farthest: the largest difference of two
    weights or moments. learned: whether there were gradients at all."""

    algorithm: str
    processes: int
    differing: list[str]
    farthest: float
    learned: bool


def measure(
    bench: Bench,
    algorithms: Sequence[str],
    counts: Sequence[int],
    steps: int,
    say: Callable[[str], None],
) -> list[Equality]:
    """counts: of processes. Each is compared with one process that has all the devices."""
    found = []
    for algorithm in algorithms:
        options = (*options_of(algorithm), f"--config.rl.steps={steps}")
        for count in counts:
            config, devices = f"configs/smoke.py:{algorithm}", count * DEVICES_EACH
            folders = []
            for processes in (1, count):
                name = f"{algorithm}-{devices}-{processes}"
                run = start(bench, name, processes, devices, options, config=config)
                if run.finish(LIMIT_S) != DONE:
                    raise NoMeasurement(f"{name} ended by {run.last_line()!r}")
                run.end()
                folders.append(run.folder)
            differing, farthest = differences(*folders), farthest_weight(*folders)
            found.append(Equality(algorithm, count, differing, farthest, learned(folders[0])))
            say(f"{found[-1]}")
    return found


def options_of(algorithm: str) -> tuple[str, ...]:
    options = (*COMPARED, *NO_SANDBOXES)
    return options if algorithm in OF_GROUPS else (*options, NO_BASELINE)
