"""evaluations.json and summary.json: success and reward on unseen tasks per family, and a run's
summary."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ale_jax.files import read_json, write_json

EVALUATIONS_FILE = "evaluations.json"
EVALS_DIR = "evals"  # a folder for each evaluation, with its episodes
EPISODES_DIR, TRAINED = "episodes", "train_"  # a folder for each step that was recorded
WARM_START = "warm_start"
FINAL = "final"

# Two-sided 95 % quantile of the standard normal distribution.
_Z95 = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class FamilyResult:
    """The result of one family of tasks. held_out: no task of this family was ever trained on.
    reward: mean over the tasks; 0 if there were none."""

    successes: int
    tasks: int
    held_out: bool
    reward: float

    def __post_init__(self):
        if not 0 <= self.successes <= self.tasks:
            raise ValueError(f"{self.successes} successes out of {self.tasks} tasks")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of the policy. name: WARM_START, FINAL, or the caller's own; seconds: on the
    clock of metrics.jsonl."""

    name: str
    step: int
    seconds: float
    families: Mapping[str, FamilyResult]

    @property
    def judged(self) -> int:
        return sum(result.tasks for result in self.families.values())

    def total(self, held_out: bool) -> FamilyResult:
        """Returns the sum over all families that were held out, or over all that were not."""
        chosen = [r for r in self.families.values() if r.held_out == held_out]
        tasks = sum(r.tasks for r in chosen)
        reward = sum(r.reward * r.tasks for r in chosen) / max(tasks, 1)
        return FamilyResult(sum(r.successes for r in chosen), tasks, held_out, reward)


def recorded_names(workdir: Path) -> set[str]:
    """Returns the names of the evaluations in the run's file."""
    path = Path(workdir) / EVALUATIONS_FILE
    return {e.name for e in read_evaluations(path)} if path.exists() else set()


def wilson_interval(successes: float, tasks: float) -> tuple[float, float]:
    """Returns the 95 % score interval of a success rate (Wilson 1927); (0, 1) when there were no
    tasks.

    It stays inside [0, 1], and has a width at 0 and at `tasks` successes, unlike the textbook
    interval of the normal approximation.
    """
    if tasks == 0:
        return 0.0, 1.0
    rate = successes / tasks
    shrink = 1 + _Z95**2 / tasks
    center = (rate + _Z95**2 / (2 * tasks)) / shrink
    half = _Z95 / shrink * math.sqrt(rate * (1 - rate) / tasks + _Z95**2 / (4 * tasks**2))
    return max(0.0, center - half), min(1.0, center + half)


def record_evaluation(workdir: Path, evaluation: Evaluation) -> None:
    """Adds `evaluation` to the run's file, in place of an earlier one of the same name.

    A run that was stopped during its first evaluation or its last one makes that again, and it must
    not be counted twice.
    """
    path = Path(workdir) / EVALUATIONS_FILE
    earlier = read_evaluations(path) if path.exists() else ()
    kept = [e for e in earlier if e.name != evaluation.name]
    write_evaluations(workdir, [*kept, evaluation])


def cut_evaluations(workdir: Path, step: int | None) -> None:
    """Removes from the run's file what a run that goes on after `step` evaluates again: later
    steps, and its end. None: it starts anew."""
    path = Path(workdir) / EVALUATIONS_FILE
    if not path.exists():
        return
    recorded = read_evaluations(path)
    kept = [e for e in recorded if step is not None and e.step <= step and e.name != FINAL]
    for evaluation in recorded:
        if evaluation not in kept:
            shutil.rmtree(Path(workdir) / EVALS_DIR / evaluation.name, ignore_errors=True)
    if len(kept) < len(recorded):
        write_evaluations(workdir, kept)


def cut_episodes(workdir: Path, step: int | None) -> None:
    """Removes the episodes of steps that a run makes again which goes on after `step`. None: it
    starts anew."""
    for folder in Path(workdir, EPISODES_DIR).glob(f"{TRAINED}*"):
        number = folder.name.removeprefix(TRAINED)
        if number.isdecimal() and int(number) > (step or 0):
            shutil.rmtree(folder)


def write_evaluations(workdir: Path, evaluations: Iterable[Evaluation]) -> None:
    """Writes the run's whole list of evaluations, atomically."""
    content = [dataclasses.asdict(evaluation) for evaluation in evaluations]
    write_json(Path(workdir) / EVALUATIONS_FILE, content)


def read_evaluations(path: Path) -> tuple[Evaluation, ...]:
    """Returns the evaluations in the file at `path`, in the order written.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged.
    """
    content = read_json(Path(path))
    try:
        return tuple(_parse_evaluation(entry) for entry in content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: not a list of evaluations ({error!r:.200})") from error


def _parse_evaluation(entry: dict[str, Any]) -> Evaluation:
    return Evaluation(
        name=str(entry["name"]),
        step=int(entry["step"]),
        seconds=float(entry["seconds"]),
        families={
            str(family): FamilyResult(
                int(result["successes"]),
                int(result["tasks"]),
                bool(result["held_out"]),
                float(result["reward"]),
            )
            for family, result in entry["families"].items()
        },
    )


SUMMARY_FILE = "summary.json"

# JSON types that a field may have, by the field's annotation.
_JSON_TYPES = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Mapping[str, float | None]": (dict,),
}


@dataclasses.dataclass(frozen=True)
class Summary:
    """The results of a run and its costs. Rates are in [0, 1]; None: not evaluated.

    config: name of the config; the resolved values are in config.json.
    success_warm_start, success_final: on tasks of the trained families, before and after
    reinforcement learning.
    success_held_out_families: at the end, on families that were never trained on.
    reward_warm_start, reward_final, reward_held_out_families: mean rewards on the same tasks.
    eval_tasks: tasks of one evaluation.
    warm_start_steps, rl_steps: that were made. rl_steps_trained: those with a gradient.
    seconds_train: the part of seconds_total without evaluations.
    episodes, policy_tokens: generated for training.
    trajectories_dropped_stale: too old when they were to be used.
    max_staleness: age of the oldest trajectory that was trained on, in versions of the weights.
    sandbox_failures: attempts at episodes that ended because their sandbox failed. actor_restarts:
    actors that were lost. Both count from the start of the run, also what happened in steps that
    were made again after an interruption.
    """

    algorithm: str
    config: str
    seed: int
    success_warm_start: float | None
    success_final: float | None
    success_held_out_families: float | None
    reward_warm_start: float | None
    reward_final: float | None
    reward_held_out_families: float | None
    success_warm_start_families: Mapping[str, float | None]
    success_final_families: Mapping[str, float | None]
    eval_tasks: int
    warm_start_steps: int
    rl_steps: int
    rl_steps_trained: int
    seconds_total: float
    seconds_train: float
    episodes: int
    policy_tokens: int
    trajectories_dropped_stale: int
    max_staleness: int
    sandbox_failures: int
    actor_restarts: int

    @property
    def untrained(self) -> str:
        """What to say of a run whose reinforcement learning left the policy as it was; "" of any
        other."""
        if self.rl_steps_trained or not self.rl_steps:
            return ""
        return (
            f"nothing was trained: none of the {self.rl_steps} steps of reinforcement learning had "
            "a gradient (nothing_trained in events.jsonl says why)"
        )


def write_summary(workdir: Path, summary: Summary) -> Path:
    """Writes summary.json, atomically, and returns its path."""
    path = Path(workdir) / SUMMARY_FILE
    write_json(path, dataclasses.asdict(summary))
    return path


def read_summary(path: Path) -> Summary:
    """Returns the summary at `path`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or has other fields than a Summary.
    """
    content = read_json(Path(path))
    try:
        summary = Summary(**content)
        _check_types(summary)
    except TypeError as error:
        raise ValueError(f"{path}: not a summary ({error!s:.200})") from error
    return summary


def _check_types(summary: Summary) -> None:
    for field in dataclasses.fields(summary):
        value = getattr(summary, field.name)
        if not isinstance(value, _JSON_TYPES[str(field.type)]):
            raise TypeError(f"{field.name} is {value!r:.80}; expected {field.type}")
        numbers = value.values() if isinstance(value, dict) else ()
        if not all(isinstance(each, _JSON_TYPES["float | None"]) for each in numbers):
            raise TypeError(f"{field.name} holds something that is not a number")
