"""summary.json: a whole run in one small record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ale_jax.files import read_json, write_json

SUMMARY_FILE = "summary.json"

# What JSON may hold for a field, by the field's annotation.
_JSON_TYPES = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Mapping[str, float]": (dict,),
}


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a run reached and what it took. Rates are in [0, 1]; None: not evaluated.

    success_warm_start, success_final: over tasks of the trained families, before and after
    reinforcement; success_held_out_families: after it, over families that were never trained on.
    eval_tasks: tasks of one evaluation. seconds_train: of seconds_total, without evaluations.
    episodes, policy_tokens: generated for training. trajectories_dropped_stale: too old at use.
    max_staleness: the oldest trajectory that was trained on, in versions of the weights.
    config: name of the config file; the resolved values are in config.json.
    """

    algorithm: str
    config: str
    seed: int
    success_warm_start: float | None
    success_final: float | None
    success_held_out_families: float | None
    success_warm_start_families: Mapping[str, float]
    success_final_families: Mapping[str, float]
    eval_tasks: int
    seconds_total: float
    seconds_train: float
    episodes: int
    policy_tokens: int
    trajectories_dropped_stale: int
    max_staleness: int
    sandbox_failures: int
    actor_restarts: int


def write_summary(workdir: Path, summary: Summary) -> Path:
    """Writes summary.json, atomically, and returns its path."""
    path = Path(workdir) / SUMMARY_FILE
    write_json(path, dataclasses.asdict(summary))
    return path


def read_summary(path: Path) -> Summary:
    """The summary at `path`.

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
        if not isinstance(value, _JSON_TYPES[field.type]):
            raise TypeError(f"{field.name} is {value!r:.80}; {field.type} is wanted")
        if isinstance(value, dict) and not all(isinstance(v, int | float) for v in value.values()):
            raise TypeError(f"{field.name} holds something that is not a number")
