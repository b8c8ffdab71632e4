"""ale-jax replay: makes the recorded steps of a run again, and says whether the weights agree."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.config.run import RunConfig
from ale_jax.errors import RunFailed
from ale_jax.files import LineAppender
from ale_jax.monitor.run_files import CONFIG_FILE
from ale_jax.monitor.schedule import SCHEDULE_FILE
from ale_jax.system.checks import checked_config, stored_config
from ale_jax.system.replay import ReplayedStep, replay
from ale_jax.system.step_metrics import step_metrics

REPLAY_FILE = "replay.jsonl"
# What the learner makes of episodes; everything else they have behind them.
LEARNING = ("algo.", "critics.", "learn.", "rl_optimizer.", "compilation_cache", "mesh.")
SHOWN = ("staleness_mean", "loss", "grad_norm", "approx_kl", "clipped_share", "entropy")


Values = Mapping[str, Any]  # of a config


def run_replay(
    operands: Sequence[str], out: str, given: Collection[str], change: Callable[[Values], Values]
) -> None:
    """Prints what each step was, and whether the weights after it are those of the run.

    operands: the folder of the run. out: a new folder for all metrics of each step; empty: none.
    given: dotted names of the fields that `change` changes.

    Raises:
      ValueError: it is not one run, it has recorded no steps, or a field may not be changed.
      RunFailed: nothing was changed, and the weights differ after some step, or the run tells
        them after none.
    """
    if len(operands) != 1:
        raise ValueError(f"replay takes one folder of a run, and not {len(operands)}")
    run = Path(operands[0])
    if not (run / CONFIG_FILE).is_file():
        raise ValueError(f"{run} holds no run: check the folder")
    try:
        config = stored_config(run / CONFIG_FILE)
    except ValueError as error:
        raise ValueError(f"{run} is of another version of ALE-JAX, or damaged: {error}") from error
    changed = changed_config(config, change(config.to_json()), given)
    shown = _Told(changed != config)
    if not out:
        replay(changed, run, shown.step)
    else:
        _replay_into(Path(out), changed, run, shown)
    print(shown.verdict())
    if not shown.known and changed == config:
        raise RunFailed(
            f"{run / SCHEDULE_FILE} tells the weights after none of {shown.steps} steps: nothing "
            "was compared"
        )
    if shown.first_other and changed == config:
        raise RunFailed(
            "the run was made by other software or hardware, or with other rates (--resume)"
        )


def changed_config(config: RunConfig, values: Values, given: Collection[str]) -> RunConfig:
    """Returns the config of a replay. ValueError if it asks for other episodes, or needs what they
    do not tell."""
    for name in sorted(given):
        if not name.startswith(LEARNING):
            raise ValueError(
                f"{name} cannot be changed: the episodes are those of the run, and only algo, "
                "critics, learn and rl_optimizer are open"
            )
    changed = checked_config(values)
    if changed != config and changed.algo.old_logp == "generating":
        raise ValueError(
            "algo.old_logp 'generating' needs the weights that sampled the episodes, which a "
            "changed replay does not have: add --config.algo.old_logp=sampler"
        )
    return changed


def _replay_into(out: Path, config: RunConfig, run: Path, shown: _Told) -> None:
    if out.exists():
        raise ValueError(f"{out} exists: name a folder that does not")
    with contextlib.ExitStack() as files:

        @functools.cache
        def lines() -> LineAppender:
            """Made with the first step, so that a mistake does not leave the folder behind."""
            out.mkdir(parents=True)
            return files.enter_context(contextlib.closing(LineAppender(out / REPLAY_FILE)))

        def write(step: ReplayedStep) -> None:
            number, values = step.report.cursor.step, step_metrics(step.report)
            lines().append({"step": number, "same_weights": step.is_same, **values})
            shown.step(step)

        replay(config, run, write)


@dataclasses.dataclass
class _Told:
    """What was printed. first_other: the first step whose weights are not those of the run."""

    is_changed: bool
    steps: int = 0
    unknown: int = 0
    first_other: int = 0

    @property
    def known(self) -> int:
        """Steps after which the run told its weights."""
        return self.steps - self.unknown

    def step(self, step: ReplayedStep) -> None:
        self.steps = step.report.cursor.step
        self.unknown += not step.recorded
        is_other = bool(step.recorded) and not step.is_same
        weights = "unknown" if not step.recorded else "other" if is_other else "same"
        if is_other and not self.first_other:
            self.first_other = self.steps
        values = step_metrics(step.report)
        figures = (f"{name} {values[name]:.4g}" for name in SHOWN if name in values)
        print(f"step {self.steps}: weights {weights}; {', '.join(figures)}", flush=True)

    def verdict(self) -> str:
        """Returns what the steps come to."""
        if not self.known:
            return "whether the weights are those of the run cannot be told"
        if not self.first_other:
            said = f"the weights after each of {self.known} steps are those of the run, bit by bit"
            return said + f" (after {self.unknown} others unknown)" * bool(self.unknown)
        if not self.is_changed:
            return f"step {self.first_other} is the first whose weights differ from the run's"
        return (
            f"the weights differ from step {self.first_other} on. Later episodes were sampled by "
            "the run's weights and not by these: approx_kl says how far these are from them"
        )
