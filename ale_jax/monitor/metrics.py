"""The metrics of each step, in metrics.jsonl and for TensorBoard."""

from __future__ import annotations

import logging
import math
import numbers
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from ale_jax.files import (
    LineAppender,
    Lines,
    encode_line,
    read_lines,
    write_atomically,
)

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"
EVENT_VERSION = "brain.Event:2"

# The one metric that is a table: age in versions -> number of trajectories of that age.
STALENESS_COUNTS = "staleness_counts"
_OWN_KEYS = {"phase", "step", "seconds", "nonfinite"}

_log = logging.getLogger(__name__)


class MetricsWriter:
    """Writes one JSON object per step, {"phase", "step", "seconds", metric: value, ...}.

    `step` counts finished steps, so the first is 1. `seconds` is the time that the run has been
    active, which continues where it stopped when a run is resumed. A metric that is NaN or infinite
    is written as null, with its name and value under "nonfinite" and a warning. A writer can be
    used from several threads.
    """

    def __init__(
        self,
        workdir: Path,
        resume_step: int | None = None,
        resume_phase: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Opens the log of a new run, or truncates that of an old one to `resume_step`.

        resume_phase: the phase in which `resume_step` is counted, if each phase counts from 1; None
        if steps are counted across all phases.

        Raises:
          ValueError: `workdir` holds a run already and resume_step is None, or its log is damaged.
        """
        self._workdir = Path(workdir)
        path = self._workdir / METRICS_FILE
        kept = _lines_to_keep(path, resume_step, resume_phase)
        if resume_step is not None:
            write_atomically(path, map(encode_line, kept))
        self._last_steps = {line["phase"]: line["step"] for line in kept}
        self._resumed = resume_step is not None
        self._lines = LineAppender(path)
        self._boards: dict[str, EventFile] = {}
        self._boards_lock = threading.Lock()
        self._clock = clock
        self._started = clock() - (kept[-1]["seconds"] if kept else 0.0)

    def seconds(self) -> float:
        """Returns the run's time until now, without the pauses before it was resumed."""
        return self._clock() - self._started

    def log(self, step: int, values: Mapping[str, Any], phase: str) -> None:
        """Writes the metrics of one finished step. Values are numbers (also 0-d arrays).

        Raises:
          ValueError: a value is not a number, or a name is one of the writer's own.
          OSError: a file cannot be written.
        """
        if own := _OWN_KEYS & values.keys():
            raise ValueError(f"metric names {sorted(own)} are reserved; rename them")
        numbers_by_name = {name: _number(name, value) for name, value in values.items()}
        record: dict[str, Any] = {
            "phase": phase,
            "step": int(step),
            "seconds": round(self.seconds(), 3),
        }
        nonfinite = {}
        for name, value in numbers_by_name.items():
            if isinstance(value, float) and not math.isfinite(value):
                nonfinite[name] = str(value)
            record[name] = None if name in nonfinite else value
        if nonfinite:
            record["nonfinite"] = nonfinite
            _log.warning("%s step %d: not finite: %s", phase, step, nonfinite)
        self._lines.append(record)
        self.draw(record["step"], record, phase)

    def draw(self, step: int, values: Mapping[str, Any], phase: str) -> None:
        """Adds the numbers among `values` to TensorBoard's curves alone. OSError if it cannot."""
        numbers = {
            name: value
            for name, value in values.items()
            if name not in _OWN_KEYS and isinstance(value, int | float)
        }
        with self._boards_lock:
            self._board(phase).write(step, numbers)

    def close(self) -> None:
        self._lines.close()
        for board in self._boards.values():
            board.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _board(self, phase: str) -> EventFile:
        # One directory per phase: TensorBoard purges by step, and each phase may count its own.
        if phase not in self._boards:
            purge_step = self._last_steps.get(phase, -1) + 1 if self._resumed else None
            folder = self._workdir / TENSORBOARD_DIR / phase
            self._boards[phase] = EventFile(folder, purge_step)
        return self._boards[phase]


def read_metrics(path: Path) -> Lines[dict[str, Any]]:
    """Returns the lines of a metrics.jsonl; see `files.read_lines` for what is tolerated."""
    return read_lines(Path(path), _parse_line)


def _lines_to_keep(
    path: Path, resume_step: int | None, resume_phase: str | None
) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    if resume_step is None:
        if path.stat().st_size:
            raise ValueError(
                f"{path} holds the metrics of another run; resume it, or choose a new workdir"
            )
        return []
    kept = []
    for line in read_metrics(path).records:
        # All lines from the first one beyond the resumed step were written after the checkpoint,
        # whatever their phase, and will be written again.
        if line["step"] > resume_step and resume_phase in (None, line["phase"]):
            break
        kept.append(_with_text_keys(line))
    return kept


def _with_text_keys(line: dict[str, Any]) -> dict[str, Any]:
    if STALENESS_COUNTS not in line:
        return line
    return line | {STALENESS_COUNTS: {str(age): n for age, n in line[STALENESS_COUNTS].items()}}


def _number(name: str, value: Any) -> Any:
    if name == STALENESS_COUNTS:
        return {str(int(age)): int(count) for age, count in value.items()}
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, str | bytes | Mapping) or value is None:
        raise ValueError(f"metric {name!r} is {value!r:.80}; expected a number")
    return float(value)


def _parse_line(line: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(line["phase"], str):
        raise TypeError(f"phase {line['phase']!r:.80} is not text")
    for name in {"step", "seconds"} | (line.keys() - _OWN_KEYS - {STALENESS_COUNTS}):
        value = line[name]
        if value is None and name not in _OWN_KEYS:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} {value!r:.80} is not a number")
    if STALENESS_COUNTS in line:
        counts = {int(age): int(count) for age, count in line[STALENESS_COUNTS].items()}
        return line | {STALENESS_COUNTS: counts}
    return line


class EventFile:
    """A new file in `folder` from which TensorBoard draws curves. It is written by the thread that
    calls, and flushed each time.

    tensorboardX's own writer has a thread and a short queue: an OSError ends that thread, and after
    that whoever adds a scalar waits for ever.
    """

    def __init__(self, folder: Path, purge_step: int | None):
        """purge_step: from this step on, TensorBoard drops what earlier files of the folder say;
        None if there are none. OSError if the file cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        # Files are named by the second, so a quick resume would overwrite the previous one.
        suffix = f"{int(time.time())}.{socket.gethostname()}.from-{purge_step or 0}"
        self._file = (folder / f"events.out.tfevents.{suffix}").open("wb")
        self._write(Event(file_version=EVENT_VERSION))
        if purge_step is not None:
            restart = SessionLog(status=SessionLog.START)
            self._write(Event(step=purge_step, file_version=EVENT_VERSION))
            self._write(Event(step=purge_step, session_log=restart))

    def write(self, step: int, values: Mapping[str, int | float]) -> None:
        """Raises OSError if it cannot be written."""
        summary = Summary(value=[scalar(*each).value[0] for each in values.items()])
        self._write(Event(step=step, summary=summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))  # each record is framed as TensorFlow does it
        self._file.write(b"".join((length, _checksum(length), data, _checksum(data))))
        self._file.flush()


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
