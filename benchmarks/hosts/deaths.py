"""One of four processes dies, hangs or is told to stop: what do the others do, and what is lost?"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.hosts.runs import COMPARED, DEVICES_EACH, differences, processes_of, start
from benchmarks.survival import evidence
from benchmarks.survival.processes import kill
from benchmarks.survival.runs import Bench, NoMeasurement, Run
from benchmarks.survival.trials import DONE

STEPS = 12
PROCESSES = 4
DEVICES = PROCESSES * DEVICES_EACH
# Slow commands of sandboxes are no fault here.
PATIENT = ("--config.deadlines.turn_seconds=30.0", "--config.deadlines.episode_seconds=90.0")
OPTIONS = (
    *(*COMPARED, *PATIENT, f"--config.rl.steps={STEPS}"),
    "--config.rollout.runtime=bubblewrap",  # whose processes belong to the run
    "--config.checkpoint.every=1",
)
LIMIT_S = 120.0
FINISHES_S = 600.0
# A run dies on four processes twice, then on two, and is finished by one.
FATES = ((4, signal.SIGKILL), (4, signal.SIGSTOP), (2, signal.SIGKILL))


@dataclasses.dataclass(frozen=True)
class Death:
    """seconds: until the other processes had ended; None if they had not after LIMIT_S. code: with
    which the first process ended, if it was not the victim. left: processes of the run, sandboxes
    included, that were still there LIMIT_S later at the most."""

    victim: int
    processes: int
    signal: str
    seconds: float | None
    code: int | None
    left: int


@dataclasses.dataclass(frozen=True)
class Resumption:
    """A run after several deaths. differing: from an unbroken run, beyond rounding."""

    deaths: list[Death]
    differing: list[str]


@dataclasses.dataclass(frozen=True)
class Termination:
    """After SIGTERM to the process `victim`. made, saved: newest step of metrics and checkpoint."""

    victim: int
    seconds: float
    code: int | None
    made: int
    saved: int


def measure_deaths(
    bench: Bench, victims: list[int], unbroken: Path, say: Callable[[str], None]
) -> list[Resumption]:
    found = []
    for victim in victims:
        name, deaths = f"deaths-{victim}", []
        for processes, number in FATES:
            run = start(bench, name, processes, DEVICES, OPTIONS)
            run.require_steps(1)
            deaths.append(_die(run, victim % processes, processes, number))
            say(f"{deaths[-1]}")
        run = start(bench, name, 1, DEVICES, OPTIONS)
        if run.finish(FINISHES_S) != DONE:
            raise NoMeasurement(f"{name} ended by {run.last_line()!r}")
        found.append(Resumption(deaths, differences(run.folder, unbroken)))
        say(f"{name}: differs in {found[-1].differing}")
    return found


def _die(run: Run, victim: int, processes: int, number: signal.Signals) -> Death:
    trainers = processes_of(run)
    if trainers.keys() != set(range(processes)):
        raise NoMeasurement(f"{run.folder.name} has the processes {sorted(trainers)}")
    trainers[victim].send(number)
    began = time.monotonic()
    others = [each for n, each in trainers.items() if n != victim]
    ended = _wait(lambda: not any(each.exists() for each in others))
    seconds = round(time.monotonic() - began, 1) if ended else None
    kill([trainers[victim]])  # if it was stopped
    _wait(lambda: not run.family.all())
    code = run.code if victim else None
    return Death(victim, processes, number.name, seconds, code, run.end())


def _wait(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return held


def measure_terminations(
    bench: Bench, victims: list[int], say: Callable[[str], None]
) -> list[Termination]:
    """The same run is stopped and started again."""
    found = []
    never = (*OPTIONS[:-1], "--config.checkpoint.every=1000")
    for victim in victims:
        run = start(bench, "terminated", PROCESSES, DEVICES, never)
        run.require_steps(1)
        trainers = processes_of(run)
        trainers[victim].send(signal.SIGTERM)
        began = time.monotonic()
        _wait(lambda every=trainers: not any(each.exists() for each in every.values()))
        seconds, code = round(time.monotonic() - began, 1), run.finish(1.0)
        run.end()
        saved = evidence.newest_checkpoint(run.folder)
        found.append(Termination(victim, seconds, code, run.step(), saved))
        say(f"{found[-1]}")
    return found
