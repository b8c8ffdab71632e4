"""The same comparisons by real runs: scheduler, gateway, engine and learner on this machine, and
sandboxes that only let time pass."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

from ale_jax.status import Status
from ale_jax.system.simulation.fit import fitted, has_result
from ale_jax.system.simulation.observed import RunPart, mean_error
from ale_jax.system.simulation.predict import predict
from benchmarks.asynchrony.cases import CASES, Case, quick
from benchmarks.asynchrony.runs import Arm, Finished, run
from benchmarks.survival.runs import QUICK_COMPILE

FREE_S = 1.0  # after which an attempt that nobody wants should be over
PLANNED = ("agentic", "redundancy")  # the cases by which predictions are judged

Runs = Mapping[str, Sequence[Finished]]  # by schedule; of all seeds


def measure(names: Sequence[str], seeds: int, is_quick: bool) -> dict[str, object]:
    """Returns the figures of these cases. Seeds are run side by side, each in its process."""
    found: dict[str, object] = {}
    errors: dict[str, float] = {}
    flags = QUICK_COMPILE if is_quick else ""
    with tempfile.TemporaryDirectory() as folder, _players(seeds, flags) as players:
        for name in names:
            case = quick(CASES[name]) if is_quick else CASES[name]
            print(f"{name}: {_load()}", flush=True)
            runs = {
                schedule: _all(players, case.arm(schedule), seeds, Path(folder))
                for schedule in case.schedules
            }
            found |= _figures(name, case, runs)
            if name in PLANNED:
                errors |= _errors(name, runs)
    if errors:
        found["planner_error_max"] = max(map(abs, errors.values()))
        found["planner_errors"] = errors
    return found


@contextlib.contextmanager
def _players(count: int, xla_flags: str) -> Iterator[concurrent.futures.Executor]:
    """Opens a pool that makes each run in a process of its own, on one device."""
    context = multiprocessing.get_context("spawn")
    variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags}
    with (
        mock.patch.dict(os.environ, variables),
        concurrent.futures.ProcessPoolExecutor(
            count, mp_context=context, max_tasks_per_child=1
        ) as pool,
    ):
        yield pool


def _all(
    players: concurrent.futures.Executor, arm: Arm, seeds: int, folder: Path
) -> list[Finished]:
    return list(players.map(run, [arm] * seeds, range(seeds), [folder] * seeds))


def _load() -> str:
    one, *_ = os.getloadavg()
    return f"{time.strftime('%H:%M:%S')}, load of the machine {one:.1f}"


def _figures(name: str, case: Case, runs: Runs) -> dict[str, object]:
    base, *others = runs
    for schedule, finished in runs.items():
        for each in finished:
            print(_row(name, schedule, case, each))
    found: dict[str, object] = {}
    for other in others:
        key = f"{name}_real" if other == others[0] else f"{name}_{other}_real"
        found[key] = _gain(runs[base], runs[other])
    if name == "redundancy":
        found |= losses(runs[others[0]])
    return found


def _gain(before: Sequence[Finished], after: Sequence[Finished]) -> float:
    """Returns the median, over seeds, of the seconds of a step by the first over the second."""
    pairs = zip(before, after, strict=True)
    gains = [a.outcome.seconds_per_step / b.outcome.seconds_per_step for a, b in pairs]
    return round(statistics.median(gains), 3)


def _row(name: str, schedule: str, case: Case, finished: Finished) -> str:
    outcome, update = finished.outcome, finished.update_seconds
    return (
        f"{name}, {schedule}: {len(finished.steps)} steps of "
        f"{outcome.seconds_per_step / case.scale:.1f} s at a scale of {case.scale:g}, places busy "
        f"{outcome.places_busy:.0%}, learner {outcome.learner_busy:.0%}, age "
        f"{outcome.mean_age:.2f}, stale {outcome.stale_share:.1%}, longest update "
        f"{update / case.scale:.1f} s, {finished.cpu_share:.2f} cores"
    )


def losses(runs: Sequence[Finished]) -> dict[str, object]:
    """Returns what redundancy costs: the share of each family's groups that is dropped, the largest
    over the smallest, and the share of useless attempts that are over within FREE_S. None for what
    did not happen."""
    rates = {}
    for family in runs[0].groups:
        kept, gone = (sum(each.groups[family][part] for each in runs) for part in (0, 1))
        rates[family] = gone / (kept + gone)
    least, seconds = min(rates.values()), [each for run in runs for each in freed_after(run)]
    in_time = sum(each <= FREE_S for each in seconds)
    return {
        "drop_rates": {family: round(rate, 3) for family, rate in rates.items()},
        "drop_rate_ratio": round(max(rates.values()) / least, 2) if least else None,
        "freed_within_1_s": round(in_time / len(seconds), 3) if seconds else None,
    }


def freed_after(run: Finished) -> Iterator[float]:
    """Yields, for each attempt that ended because its group had enough members, the seconds since
    the last one of these."""
    size, groups = run.config.rl.group_size, defaultdict(list)
    for attempt in run.times.attempts:
        groups[attempt.group].append(attempt)
    for attempts in groups.values():
        ended = sorted(each.ended for each in attempts if has_result(each))
        if len(ended) >= size:
            for each in attempts:
                if each.status == Status.CANCELLED and each.ended >= ended[size - 1]:
                    yield each.ended - ended[size - 1]


def _errors(name: str, runs: Runs) -> dict[str, float]:
    """Returns how far predictions of each schedule are off, of its steps per hour. They are fitted
    to all seeds of the first schedule but the last, and compared with all other runs: the mean of
    their steps. With one seed they are fitted to that, which is left out."""
    base, *others = runs
    known = runs[base][:-1] or runs[base]
    unseen = {base: runs[base][len(known) :]} | {other: runs[other] for other in others}
    costs = fitted([RunPart(each.times, each.steps) for each in known])
    errors = {}
    for schedule, finished in unseen.items():
        if finished:
            predicted = predict(finished[0].config, costs)
            found = [step.seconds for each in finished for step in each.steps]
            error = statistics.mean(found) / predicted.seconds_per_step - 1.0
            by_chance = math.hypot(mean_error(found), predicted.error)
            print(f"{name}, {schedule}: predicted speed off by {error:+.1%} ± {by_chance:.1%}")
            errors[f"{name}, {schedule}"] = round(error, 3)
    return errors
