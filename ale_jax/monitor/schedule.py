"""schedule.jsonl: what is needed to replay an asynchronous run, one line per step.

In an asynchronous run it depends on time which weights sampled a token and which groups a step was
trained on. Everything else follows from the config and positions.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ale_jax.files import LineAppender, Lines, encode_line, read_lines, write_atomically

SCHEDULE_FILE = "schedule.jsonl"


@dataclasses.dataclass(frozen=True)
class ScheduledGroup:
    """A group that a step was trained on.

    order: number of groups admitted before it, since the run was started or resumed. version: at
    its admission.
    The others have one entry per member: starts, its start version; ages, at this use; versions,
    those of its sampled tokens, as (version, number of tokens) from the first to the last.
    """

    index: int
    order: int
    version: int
    starts: tuple[int, ...]
    ages: tuple[int, ...]
    versions: tuple[tuple[tuple[int, int], ...], ...]


@dataclasses.dataclass(frozen=True)
class ScheduledStep:
    """A step of training and its groups. groups: in the order of training. dropped: (index, reason)
    of the groups that were dropped since the step before. weights: digest of those after the step;
    empty if the run does not record its steps."""

    step: int
    groups: tuple[ScheduledGroup, ...]
    dropped: tuple[tuple[int, str], ...]
    weights: str = ""


class ScheduleWriter:
    """Appends steps. It first removes those after `resume_step`, which will be made again."""

    def __init__(self, workdir: Path, resume_step: int):
        path = Path(workdir) / SCHEDULE_FILE
        if path.exists():
            kept = (each for each in read_schedule(path).records if each.step <= resume_step)
            write_atomically(path, (encode_line(dataclasses.asdict(each)) for each in kept))
        self._lines = LineAppender(path)

    def write(self, step: ScheduledStep) -> None:
        self._lines.append(dataclasses.asdict(step))

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> ScheduleWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_schedule(path: Path) -> Lines[ScheduledStep]:
    """Returns the steps of a schedule.jsonl; see `files.read_lines` for what is tolerated."""
    return read_lines(Path(path), _parse_step)


def _parse_step(line: dict[str, Any]) -> ScheduledStep:
    groups = tuple(map(_parse_group, line["groups"]))
    dropped = tuple((int(index), str(reason)) for index, reason in line["dropped"])
    return ScheduledStep(int(line["step"]), groups, dropped, str(line.get("weights", "")))


def _parse_group(values: dict[str, Any]) -> ScheduledGroup:
    starts, ages = tuple(map(int, values["starts"])), tuple(map(int, values["ages"]))
    versions = tuple(
        tuple((int(version), int(tokens)) for version, tokens in member)
        for member in values["versions"]
    )
    if not len(starts) == len(ages) == len(versions):
        raise ValueError(f"group {values['index']!r:.80} has lists of different lengths")
    return ScheduledGroup(
        int(values["index"]), int(values["order"]), int(values["version"]), starts, ages, versions
    )
