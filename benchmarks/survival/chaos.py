"""Whole runs with sandboxes in which something is killed every few seconds and some sandboxes hang,
against calm ones: do they end, as quickly, and with the same success?"""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable

from ale_jax.monitor.evaluations import (
    EVALUATIONS_FILE,
    FINAL,
    SUMMARY_FILE,
    FamilyResult,
    read_evaluations,
    wilson_interval,
)
from benchmarks.survival import evidence
from benchmarks.survival.plan import Plan
from benchmarks.survival.processes import Process, kill
from benchmarks.survival.runs import Bench, NoMeasurement, Run
from benchmarks.survival.trials import EXPECTED

# A role and how often it is drawn. With the last three the run ends, or may end in one line, and is
# started again by the same command. A real machine loses them rarely.
ROLES = {"worker": 10, "sandbox": 10, "trainer": 1, "raylet": 1, "head": 1}
HANG_S = 300.0  # without a line in the metrics
LOOK_S = 0.5  # looking more often would take time from the run
RESUMABLE = (EXPECTED, -signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that came to its end, or did not. rate: steps per second, from the first step to the
    last, pauses included. bugs: ends by another exit code than 2 and that of our kill."""

    ended: bool
    rate: float
    success: FamilyResult
    kills: int
    hung_sandboxes: int
    restarts: int
    bugs: int


class Havoc:
    """What is done to a run, as time passes."""

    def __init__(self, run: Run, plan: Plan):
        self._run, self._plan = run, plan
        self._chance = random.Random(plan.seed)
        self._known: set[Process] = set()
        self._next_kill = time.monotonic() + plan.kill_every_s
        self.kills = self.hung_sandboxes = 0

    def act(self) -> None:
        """To be called all the time."""
        for sandbox in self._run.family.sandboxes():
            if sandbox[0] not in self._known:
                self._known.add(sandbox[0])
                if self._chance.random() < self._plan.hung_share:
                    kill(sandbox, signal.SIGSTOP)
                    self.hung_sandboxes += 1
        if time.monotonic() > self._next_kill and self._run.step():
            self._next_kill = time.monotonic() + self._plan.kill_every_s
            self._kill(self._chance.choices([*ROLES], [*ROLES.values()])[0])

    def _kill(self, role: str) -> None:
        family = self._run.family
        match role:
            case "trainer":
                found = [self._run]
            case "raylet":
                found = family.named("raylet")
            case "head":
                found = family.named("gcs_server")
            case "worker":
                found = family.workers()[:1]
            case "sandbox":
                found = [each for sandbox in family.sandboxes()[:1] for each in sandbox]
        for each in found:
            each.send(signal.SIGKILL)
        self.kills += bool(found)  # there may be none of the role just now


def measure(bench: Bench, plan: Plan, say: Callable[[str], None]) -> tuple[list[Ended], Ended]:
    """The calm runs, and the one under chaos. All have the same config, so that the differences
    between them are those of asynchronous runs."""
    ends = []
    for name in [*(f"calm{number}" for number in range(plan.calm_runs)), "chaos"]:
        run = bench.run(name, *plan.chaos_options, config=plan.chaos_config)
        ends.append(_until_end(run, Havoc(run, plan) if name == "chaos" else None))
        say(f"{name}: {ends[-1]}")
        if name == "chaos" and not ends[-1].hung_sandboxes:
            raise NoMeasurement("no sandbox was stopped: their processes were not found")
        run.end()
    return ends[:-1], ends[-1]


class _Clock:
    """When the first step was seen, and the newest, and when the metrics last changed."""

    def __init__(self) -> None:
        self._first = self._newest = (0.0, 0)
        self._lines = 0
        self._changed_at = time.monotonic()

    def look(self, run: Run) -> None:
        now, step, lines = time.monotonic(), run.step(), evidence.metrics_lines(run.folder)
        if step and not self._first[1]:
            self._first = self._newest = now, step
        if step > self._newest[1]:
            self._newest = now, step
        if lines != self._lines:
            self._lines, self._changed_at = lines, now

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self._changed_at > HANG_S

    @property
    def rate(self) -> float:
        (began, first), (ended, last) = self._first, self._newest
        return (last - first) / (ended - began) if last > first else 0.0


def _until_end(run: Run, havoc: Havoc | None) -> Ended:
    restarts, bugs, clock = 0, 0, _Clock()
    run.start()
    while not (ended := (run.folder / SUMMARY_FILE).exists()) and not clock.is_late:
        clock.look(run)
        if havoc:
            havoc.act()
        if run.code is not None:
            if havoc is None:
                raise NoMeasurement(f"{run.folder.name}: {run.code}, {run.last_line()!r}")
            bugs += run.code not in RESUMABLE
            restarts += 1
            run.start()
        time.sleep(LOOK_S)
    clock.look(run)
    done = (havoc.kills, havoc.hung_sandboxes) if havoc else (0, 0)
    return Ended(ended, clock.rate, _success(run), *done, restarts, bugs)


def _success(run: Run) -> FamilyResult:
    """At the end, on the families that it was trained on."""
    path = run.folder / EVALUATIONS_FILE
    found = read_evaluations(path) if path.exists() else ()
    final = [each for each in found if each.name == FINAL]
    return final[0].total(held_out=False) if final else FamilyResult(0, 0, False, 0.0)


def interval(calm: list[Ended]) -> tuple[float, float]:
    """From the lowest to the highest end of the calm runs' 95 % intervals."""
    each = [wilson_interval(run.success.successes, run.success.tasks) for run in calm]
    return min(low for low, _ in each), max(high for _, high in each)
