"""kill -9 at random moments of an asynchronous run: are groups lost or trained twice, and how many
of the finished episodes are kept?"""

from __future__ import annotations

import dataclasses
import math
import random
import signal
from collections.abc import Callable

from benchmarks.survival import evidence
from benchmarks.survival.history import History, read_history, schedule_agrees
from benchmarks.survival.plan import ENDLESS, STOP_S, Plan
from benchmarks.survival.runs import Bench, NoMeasurement, Run

ALPHA = 2.0
WINDOW_S = 4.0
STEPS_AFTER = 3
OPTIONS = (
    f"--config.rl.alpha={ALPHA}",
    "--config.rl.fill_queue=True",
    "--config.rl.group_size=4",
    "--config.checkpoint.every=1",
    ENDLESS,
)


@dataclasses.dataclass(frozen=True)
class Account:
    """schedule_agrees: None if the run has written none."""

    kills: int
    steps: int
    groups_lost: int
    groups_trained_twice: int
    oldest: int
    kept: int
    replayed: int
    schedule_agrees: bool | None

    @property
    def kept_share(self) -> float | None:
        """None if there was nothing to keep."""
        total = self.kept + self.replayed
        return round(self.kept / total, 4) if total else None


def measure(bench: Bench, plan: Plan, say: Callable[[str], None]) -> Account:
    """One run is killed time after time, so that a kill costs a start, and not a whole run."""
    chance = random.Random(plan.seed)
    run = bench.plain("asynchronous", *OPTIONS, fault="watch")
    for number in range(plan.async_kills):
        run.start()
        run.wait_for_random_moment(chance, WINDOW_S)
        if run.code is not None:
            raise NoMeasurement(f"it ended by itself: {run.last_line()!r}")
        run.send(signal.SIGKILL)
        run.finish()
        say(f"kill {number + 1} of an asynchronous run, after step {run.step()}")
    run.start()
    run.require(run.trains, "it does not train")
    run.require_steps(STEPS_AFTER)
    run.stop(STOP_S)
    run.end()
    return account(run, plan.async_kills)


def account(run: Run, kills: int) -> Account:
    history = read_history(run.mark, math.ceil(ALPHA))
    host = evidence.host_state(run.folder)
    history.undo_after(host["step"])
    return _account(history, host, kills, schedule_agrees(run.folder, history))


def _account(history: History, host: dict, kills: int, agrees: bool | None) -> Account:
    return Account(
        kills=kills,
        steps=len(history.steps),
        groups_lost=len(history.lost(host["groups"], range(*host["next_groups"]))),
        groups_trained_twice=history.trained_twice(),
        oldest=history.oldest,
        kept=history.kept,
        replayed=history.replayed,
        schedule_agrees=agrees,
    )
