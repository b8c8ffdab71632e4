"""kill -9 at random moments of a synchronous run: is the run in the end that of an unkilled one?"""

from __future__ import annotations

import dataclasses
import random
import signal
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from ale_jax.learn.manifest import state_folder
from benchmarks.survival import evidence
from benchmarks.survival.plan import Plan
from benchmarks.survival.runs import Bench, NoMeasurement, Run
from benchmarks.survival.trials import DONE

WINDOW_S = 8.0
END_S = 300.0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A run that was killed `kills` times, against one that was not. different: what differs."""

    kills: int
    hung: bool
    different: tuple[str, ...]

    @property
    def identical(self) -> bool:
        return not self.hung and not self.different


def measure(bench: Bench, plan: Plan, say: Callable[[str], None]) -> list[Comparison]:
    """A run that ends before it was killed often enough is followed by another one."""
    options = ("--config.rl.alpha=0.0", f"--config.rl.steps={plan.sync_steps}")
    options += ("--config.checkpoint.every=2",)
    unkilled = bench.plain("unkilled", *options)
    unkilled.start()
    if unkilled.finish(END_S) != DONE:
        raise NoMeasurement(f"the run to compare with ended by {unkilled.last_line()!r}")
    chance, compared = random.Random(plan.seed), []
    while (left := plan.sync_kills - sum(each.kills for each in compared)) > 0:
        run = bench.plain(f"killed{len(compared)}", *options)
        kills, code = _kill_until_done(run, left, chance)
        different = () if code is None else compare(run.folder, unkilled.folder)
        compared.append(Comparison(kills, code is None, different))
        say(f"{kills} kills of a synchronous run, exit {code}; different: {different or 'nothing'}")
        run.end()
    return compared


def _kill_until_done(run: Run, most: int, chance: random.Random) -> tuple[int, int | None]:
    """Kills the run at most so often, and starts it again by the same command until it is done;
    (kills, the last exit code)."""
    for kills in range(most):
        run.start()
        run.wait_for_random_moment(chance, WINDOW_S)
        if run.code is not None:
            return kills, run.code
        run.send(signal.SIGKILL)
        run.finish()
    run.start()
    return most, run.finish(END_S)


def compare(one: Path, other: Path) -> tuple[str, ...]:
    """What differs between two finished runs: their metrics, but for times, and their weights."""
    different = []
    if evidence.untimed_metrics(one) != evidence.untimed_metrics(other):
        different.append("metrics")
    states = (_leaves(evidence.checkpoints(folder)) for folder in (one, other))
    if not all(map(np.array_equal, *states)):
        different.append("weights")
    return tuple(different)


def _leaves(checkpoints: dict[int, Path]) -> list[np.ndarray]:
    """Weights, moments and step of the newest checkpoint."""
    newest = state_folder(checkpoints[max(checkpoints)])
    return jax.tree.leaves(jax.device_get(ocp.StandardCheckpointer().restore(newest)))
