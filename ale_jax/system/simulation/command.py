"""ale-jax simulate: predicts how fast a config trains, and which schedule around it is faster."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.config.hardware import HardwareConfig
from ale_jax.config.run import RunConfig
from ale_jax.monitor.run_files import CONFIG_FILE
from ale_jax.monitor.times import TIMES_FILE, Times, read_times
from ale_jax.system.checks import checked_config, stored_config
from ale_jax.system.simulation.engines import Engines, engines_of
from ale_jax.system.simulation.fit import Costs, fitted
from ale_jax.system.simulation.observed import RunPart, TimedStep, timed_steps
from ale_jax.system.simulation.picture import write_picture
from ale_jax.system.simulation.predict import (
    Check,
    LogNormal,
    check,
    given_costs,
    require_known,
)
from ale_jax.system.simulation.search import search
from ale_jax.system.simulation.sides import learners_of, lent_devices, num_lent
from ale_jax.system.simulation.tables import show
from ale_jax.system.simulation.updates import PROPORTIONAL, Scaling

LEAST_STEPS = 4  # of a run, beside the first one and those that compile
PICTURE = ".svg"
EPISODE_SECONDS, UPDATE_SECONDS, LOST = "60,600", 60.0, 0.01
Values = Mapping[str, Any]  # of a config


@dataclasses.dataclass(frozen=True)
class Basis:
    """The flags that say what predictions rest on; None or "" for those that were not given.
    dispatch: as of `Engines`. update_speedup: as of `Scaling`. picture: the file that gets one."""

    source: str
    check: str
    episode_seconds: str
    update_seconds: float | None
    lost: float | None
    dispatch: float | None
    update_speedup: float | None
    picture: str

    @property
    def given(self) -> list[str]:
        """Flags that say what else runs would."""
        flags = {
            "--episode-seconds": self.episode_seconds or None,
            "--update-seconds": self.update_seconds,
            "--lost": self.lost,
        }
        return [name for name, value in flags.items() if value is not None]

    @property
    def scaling(self) -> Scaling | None:
        return None if self.update_speedup is None else Scaling(self.update_speedup)


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run with times. steps: those that say something of others."""

    name: str
    config: RunConfig
    times: Times
    steps: list[TimedStep]


def run_simulate(basis: Basis, values: Values | None, change: Callable[[Values], Values]) -> None:
    """Prints how far predictions are off, those for schedules around the config, and what to set
    for the best of them.

    values: of the config; None for that of the first run in `basis.source`, with what `change`
    changes.

    Raises:
      ValueError: a run has no times, or the config cannot be simulated.
    """
    runs, others = _runs(basis.source), _runs(basis.check)
    if values is None:
        if not runs:
            raise ValueError("--config is missing: name one, or a run by --from")
        values = change(runs[0].config.to_json())
    if basis.picture:
        _require_picture(Path(basis.picture))
    config = checked_config(values)
    for each in (config, *(run.config for run in others)):
        require_known(each)
    _require_same_devices(config, (*runs, *others))
    runs, others = ([_placed(run, config.hardware) for run in each] for each in (runs, others))
    if runs and basis.given:
        raise ValueError(
            f"{basis.given[0]} has no use with --from, whose runs say it: leave it out"
        )
    require_told(config, (*runs, *others), basis)
    if runs:
        costs = _measured(runs, others, basis)
    else:
        costs = dataclasses.replace(_given(basis), learners=learners_of(config))
    costs = dataclasses.replace(costs, dispatch=basis.dispatch)
    checks = _checks(costs, runs, others)
    candidates = search(config, costs)
    show(config, costs, checks, candidates)
    if basis.picture:
        write_picture(Path(basis.picture), candidates, checks)


def _require_picture(path: Path) -> None:
    """ValueError before anything is simulated, which takes minutes, if there can be no picture."""
    if path.suffix != PICTURE:
        raise ValueError(f"--picture={path} must end in {PICTURE}, the format it has")
    folder = next(each for each in path.absolute().parents if each.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"--picture={path} cannot be written: name a file in a folder that can be")


def require_told(config: RunConfig, runs: Sequence[_Run], basis: Basis) -> None:
    """Raises ValueError if flags and runs do not tell what the roles of a config do, or a flag has
    no use."""
    rollout, measured = config.rollout, [run.config for run in runs]
    if rollout.reward_workers and not any(each.rollout.reward_workers for each in measured):
        raise ValueError(
            f"rollout.reward_workers {rollout.reward_workers}: only runs that had some tell how "
            "long verdicts take: name one by --from, or set it to 0"
        )
    is_varied = bool(runs and rollout.engine_devices and rollout.devices_per_engine)
    _require_dispatch(basis.dispatch, [engines_of(each) for each in (config, *measured)], is_varied)
    same = {learners_of(each) for each in (config, *measured)} == {learners_of(config)}
    if basis.scaling and same and not (rollout.lent_engines or is_varied):
        raise ValueError(
            f"--update-speedup={basis.update_speedup:g} has no use: updates are lent no devices, "
            "and how many learn beside engines of one size is not varied"
        )


def _require_dispatch(dispatch: float | None, engines: Sequence[Engines], is_varied: bool) -> None:
    """engines: of the config, and of the runs. is_varied: whether their number is."""
    numbers = {each.per_process for each in engines}
    if dispatch is not None:
        Engines(dispatch=dispatch)  # ValueError if it is no share
        if numbers == {1} and not is_varied:
            raise ValueError(f"--dispatch={dispatch:g} has no use: each process has one engine")
    # What as many engines cost a process is measured as it is.
    elif max(numbers) > 1 and (len(numbers) > 1 or len(engines) == 1):
        raise ValueError(
            f"each process has {max(numbers)} engines, which wait for one another's dispatches: "
            "give --dispatch, the share of an engine's time that they take of its process"
        )


def _require_same_devices(config: RunConfig, runs: Sequence[_Run]) -> None:
    """ValueError if learner and engines of a run shared other devices than those of the config."""
    for run in runs:
        wanted, had = (each.rollout.engine_devices for each in (config, run.config))
        size, other = (each.rollout.devices_per_engine for each in (config, run.config))
        if had != wanted and not (had and wanted and size and size == other):
            raise ValueError(
                f"rollout.engine_devices {wanted} cannot be predicted from {run.name}, which had "
                f"{had}: how its episodes and updates slowed each other down says nothing of it. "
                f"Set it to {had}, or name runs with {wanted}"
            )


def _placed(run: _Run, hardware: HardwareConfig) -> _Run:
    """Says on how many devices the updates of a run were. hardware: of the run, if it does not name
    its own and its engines have some."""
    config = run.config
    if config.rollout.engine_devices and not config.hardware.devices:
        config = dataclasses.replace(config, hardware=hardware)
    lent_devices(config)  # ValueError if it lends some, and nothing says how many there are
    own, lent = learners_of(config), num_lent(config)
    steps = [dataclasses.replace(each, learners=own, lent=lent) for each in run.steps]
    return dataclasses.replace(run, config=config, steps=steps)


def _runs(folders: str) -> list[_Run]:
    return [_read(Path(folder)) for folder in folders.split(",")] if folders else []


def _read(folder: Path) -> _Run:
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder} holds no run: check the folder")
    if not (folder / TIMES_FILE).is_file():
        raise ValueError(
            f"{folder} has no {TIMES_FILE}, which runs write since there is ale-jax simulate: name "
            "a newer run, or give --episode-seconds and --update-seconds instead"
        )
    times = read_times(folder / TIMES_FILE)
    steps = timed_steps(times)
    if len(steps) < LEAST_STEPS:
        raise ValueError(
            f"{folder} has {len(steps)} steps beside its first one and those that compiled, and "
            f"{LEAST_STEPS} are needed: let it run longer"
        )
    try:
        config = stored_config(folder / CONFIG_FILE)
    except ValueError as error:
        raise ValueError(
            f"{folder} is of another version of ALE-JAX, or damaged: {error}"
        ) from error
    return _Run(str(folder), config, times, steps)


def _halves(run: _Run) -> tuple[list[TimedStep], list[TimedStep]]:
    half = len(run.steps) // 2
    return run.steps[:half], run.steps[half:]


def _measured(runs: Sequence[_Run], others: Sequence[_Run], basis: Basis) -> Costs:
    """Without other runs, the second half of each is what nothing is fitted to."""
    parts = []
    for run in runs:
        engines = dataclasses.replace(engines_of(run.config), dispatch=basis.dispatch or 0.0)
        lent = lent_devices(run.config)
        steps = run.steps if others else _halves(run)[0]
        parts.append(RunPart(run.times, steps, engines, lent.crowd if lent else 1.0))
    return fitted(parts, basis.scaling)


def _given(basis: Basis) -> Costs:
    given = basis.episode_seconds or EPISODE_SECONDS
    try:
        median, p99 = map(float, given.split(","))
    except ValueError as error:
        raise ValueError(
            f"--episode-seconds={given} must be MEDIAN,P99, such as {EPISODE_SECONDS}"
        ) from error
    lost = LOST if basis.lost is None else basis.lost
    update = UPDATE_SECONDS if basis.update_seconds is None else basis.update_seconds
    return given_costs(LogNormal(median, p99, lost), update, basis.scaling or PROPORTIONAL)


def _checks(costs: Costs, runs: Sequence[_Run], others: Sequence[_Run]) -> list[Check]:
    if others:
        return [check(run.name, run.config, costs, run.times, run.steps) for run in others]
    return [
        check(f"{run.name}, second half", run.config, costs, run.times, _halves(run)[1])
        for run in runs
    ]
