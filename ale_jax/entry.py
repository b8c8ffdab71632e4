"""Train, evaluate and serve from Python, as the command line does.

    import ale_jax

    ale_jax.train("smoke", "runs/first", {"rl.steps": 4})
    print(ale_jax.evaluate("smoke", "runs/first", {"rl.steps": 4}).total(held_out=False))

A config is the name of one of ours, a file, a `RunConfig`, or a mapping with a value for every
field. Overrides are values by the dotted names of fields.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ale_jax.command_line import read_config
from ale_jax.config.fields import flat, unknown_field
from ale_jax.config.run import RunConfig
from ale_jax.errors import RunFailed
from ale_jax.monitor.evaluations import SUMMARY_FILE, Evaluation, read_summary
from ale_jax.monitor.report import REPORT_FILE
from ale_jax.system import controller, evaluate_run
from ale_jax.system.checks import check_devices, resolved_config
from ale_jax.system.hosts.commands import Alone, Processes
from ale_jax.system.library_log import LibraryLog
from ale_jax.system.rollouts.opening import check_backend
from ale_jax.system.serve import Serving, serving
from ale_jax.system.stopping import StopSignals
from ale_jax.system.workdir import RunState, Workdir

Config = RunConfig | Mapping[str, Any] | str | Path
Run = Callable[[RunConfig, Workdir, StopSignals, Processes], None]

TRACEBACK_FILE = "traceback.txt"


def train(
    config: Config,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    ray_address: str = "",
) -> Path:
    """Trains, evaluates and reports a run, or continues it; returns its folder.

    resume, overwrite, ray_address: as the flags of `ale-jax train`.

    Raises:
      ValueError: the config makes no sense, or the folder cannot be used.
      RunFailed: the run cannot go on, or has ended without having trained anything.
    """
    path, checked = Path(workdir), as_config(config, overrides, None if overwrite else workdir)
    run = controller_at(checked, ray_address)
    train_in(path, checked, resume, overwrite, Alone(), run)
    return path


def evaluate(
    config: Config, workdir: str | Path, overrides: Mapping[str, Any] | None = None
) -> Evaluation:
    """Plays the evaluation tasks of the run in `workdir` with its newest policy.

    Nothing is written into the folder. ValueError if it holds no run of this config.
    """
    return evaluate_run.evaluate(as_config(config, overrides, workdir), Path(workdir))


def serve(
    config: Config,
    workdir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
) -> contextlib.AbstractContextManager[Serving]:
    """Answers OpenAI's and Anthropic's APIs within a `with` block, which gets address and key.

    workdir: of the run whose newest policy answers; None: the weights that the config names do.
    """
    path = Path(workdir).resolve() if workdir else None
    return serving(as_config(config, overrides, path), path, host, port)


def as_config(
    config: Config,
    overrides: Mapping[str, Any] | None = None,
    workdir: str | Path | None = None,
) -> RunConfig:
    """Returns the checked config. workdir: as `run` of `resolved_config`. ValueError if there is
    none, or a field is unknown or wrong."""
    if isinstance(config, RunConfig):
        values: Mapping[str, Any] = config.to_json()
    else:
        values = read_config(str(config), []) if isinstance(config, str | Path) else config
    return resolved_config(
        _overridden(values, overrides or {}), overrides or {}, Path(workdir) if workdir else None
    )


def _overridden(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    known = flat(values)
    for name in overrides:
        if name not in known:
            raise unknown_field(name, known)

    def apply(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        return {
            name: apply(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else overrides.get(f"{prefix}{name}", value)
            for name, value in section.items()
        }

    return apply(values, "")


def controller_at(config: RunConfig, ray_address: str) -> Run:
    """Returns the controller's `run`, with episodes on the Ray cluster at `ray_address`, or on this
    machine if it is empty. ValueError, before a folder is claimed, if they cannot be played there.
    """
    check_backend(config.rollout, ray_address)
    return functools.partial(controller.run, ray_address=ray_address)


def train_in(
    path: Path, config: RunConfig, resume: bool, overwrite: bool, processes: Processes, run: Run
) -> None:
    """Claims the folder `path` and lets `run` do what is left to do there."""
    check_devices(config)
    with Workdir.claim(path, config, resume, overwrite) as workdir:
        if workdir.moved:
            print(f"the previous run in {workdir.path} is now in {workdir.moved}")
        if workdir.state is RunState.FINISHED:
            if report := workdir.write_missing_report():
                print(f"report: {report}")
            print(f"the run in {workdir.path} is finished: --overwrite starts over")
            _require_trained(workdir)
            return
        if workdir.state is RunState.UNFINISHED:
            print(f"continuing the unfinished run in {workdir.path}")
        _run(run, config, workdir, processes)
        _require_trained(workdir)


def _require_trained(workdir: Workdir) -> None:
    """Raises RunFailed if a run has ended and trained nothing, not even in a warm start."""
    path = workdir.path / SUMMARY_FILE
    summary = read_summary(path) if path.exists() else None
    if summary and summary.untrained and not summary.warm_start_steps:
        raise RunFailed(f"{summary.untrained}; report: {workdir.path / REPORT_FILE}")


def _run(run: Run, config: RunConfig, workdir: Workdir, processes: Processes) -> None:
    try:
        with LibraryLog(workdir.path), StopSignals(config.checkpoint.grace_seconds) as stop:
            run(config, workdir, stop, processes)
    except Exception as error:
        path = workdir.path / TRACEBACK_FILE
        # On a full disk the error itself matters more than its traceback.
        with contextlib.suppress(OSError):
            path.write_text(traceback.format_exc())
            error.add_note(f"traceback in {path}")
        raise
