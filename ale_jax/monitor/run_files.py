"""Reads all files in a run's directory for the report, and notes what is missing or damaged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ale_jax.files import Lines, read_json
from ale_jax.monitor.evaluations import (
    EVALUATIONS_FILE,
    SUMMARY_FILE,
    Evaluation,
    Summary,
    read_evaluations,
    read_summary,
)
from ale_jax.monitor.events import EVENTS_FILE, Event, read_events
from ale_jax.monitor.metrics import METRICS_FILE, read_metrics
from ale_jax.monitor.timeline import EARLIER_FILE, TIMELINE_FILE, Span, read_timeline
from ale_jax.monitor.trajectories import TRAJECTORIES_FILE, TrajectorySample, read_trajectories

CONFIG_FILE = "config.json"  # a name that other programs use, too
CHECKPOINTS_DIR = "checkpoints"
RECORDS = (METRICS_FILE, EVENTS_FILE, EVALUATIONS_FILE, TRAJECTORIES_FILE, SUMMARY_FILE)
MAX_CONFIG_DEPTH = 8

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """The content of a run's files.

    timeline: () if the run was not told to write one.
    config: the resolved values by their dotted names.
    notices: one line for each file that is missing, empty, truncated or damaged.
    damaged: whether some file could not be read; its content is then empty, as if it were missing.
    """

    workdir: Path
    summary: Summary | None
    metrics: tuple[dict[str, Any], ...]
    evaluations: tuple[Evaluation, ...]
    events: tuple[Event, ...]
    trajectories: tuple[TrajectorySample, ...]
    timeline: tuple[Span, ...]
    config: tuple[tuple[str, str], ...]
    notices: tuple[str, ...]
    damaged: bool

    @property
    def name(self) -> str:
        """The run's name, which is that of its directory."""
        return self.workdir.resolve().name

    def phase(self, name: str) -> list[dict[str, Any]]:
        """Returns the metrics lines of one phase, in order."""
        return [line for line in self.metrics if line["phase"] == name]


def read_run(workdir: Path) -> RunFiles:
    """Reads all files that exist.

    Raises:
      ValueError: `workdir` is not a directory.
    """
    workdir = Path(workdir)
    if not workdir.is_dir():
        raise ValueError(f"{workdir} is not a directory; give the directory of a run")
    reader = _Reader(workdir)
    return RunFiles(
        workdir=workdir,
        summary=reader.read(SUMMARY_FILE, read_summary, None),
        metrics=reader.read_log(METRICS_FILE, read_metrics),
        evaluations=reader.read(EVALUATIONS_FILE, read_evaluations, ()),
        events=reader.read_log(EVENTS_FILE, read_events),
        trajectories=reader.read_log(TRAJECTORIES_FILE, read_trajectories),
        timeline=(*reader.read_trace(EARLIER_FILE), *reader.read_trace(TIMELINE_FILE)),
        config=reader.read(CONFIG_FILE, read_config, ()),
        notices=tuple(reader.notices),
        damaged=reader.damaged,
    )


def require_run(workdir: Path) -> None:
    """Raises ValueError if no run has recorded anything in `workdir`."""
    if not any((workdir / name).is_file() for name in RECORDS):
        raise ValueError(f"{workdir} holds no run ({', '.join(RECORDS)}): give a run's directory")


def read_config(path: Path) -> tuple[tuple[str, str], ...]:
    """Returns the values in a config.json as ("section.name", value as JSON), in the order written.

    Raises:
      ValueError: it is damaged, not an object, or nested deeper than MAX_CONFIG_DEPTH.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, found {type(content).__name__}")
    return tuple(_flat(content, "", MAX_CONFIG_DEPTH))


def _flat(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth < 0:
        raise ValueError(f"config is nested deeper than {MAX_CONFIG_DEPTH} levels at {name:.80}")
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key, depth - 1)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{index}]", depth - 1)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


class _Reader:
    """Reads files and collects notices about them."""

    def __init__(self, workdir: Path):
        self._workdir = workdir
        self.notices: list[str] = []
        self.damaged = False

    def read(self, name: str, read: Callable[[Path], T], absent: T) -> T:
        path = self._workdir / name
        if not path.is_file():
            self.notices.append(f"{name} is missing")
            return absent
        if path.stat().st_size == 0:
            self.notices.append(f"{name} is empty")
            return absent
        try:
            return read(path)
        except ValueError as error:
            self.damaged = True
            self.notices.append(str(error))
            return absent

    def read_log(self, name: str, read: Callable[[Path], Lines[T]]) -> tuple[T, ...]:
        none_there: Lines[T] = Lines((), None)
        lines = self.read(name, read, none_there)
        if lines.truncated_line is not None:
            self.notices.append(
                f"{name}: line {lines.truncated_line} is incomplete and was left out"
            )
        return lines.records

    def read_trace(self, name: str) -> tuple[Span, ...]:
        """Returns the spans of a file that a run only writes if it is told to."""
        there = (self._workdir / name).exists()
        return self.read_log(name, read_timeline) if there else ()
