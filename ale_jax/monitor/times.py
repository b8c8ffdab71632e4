"""times.jsonl: when attempts at episodes and steps began and ended, for `ale-jax simulate`.

It is of the process that writes it: a run that is resumed begins it anew.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ale_jax.files import LineAppender, read_lines
from ale_jax.status import Status

TIMES_FILE = "times.jsonl"
LONGEST_S = 1e9  # of a run: a simulated clock still tells moments apart
NO_GROUP = -1  # of what is not played to be trained on


@dataclasses.dataclass(frozen=True)
class AttemptTimes:
    """An attempt at an episode. begun, ended: seconds, on the run's clock, in which it had a place.
    group: of training, or NO_GROUP. turns, tokens: that the policy sampled; tokens 0 if the attempt
    had no result. verdict: seconds of a reward worker, after that."""

    begun: float
    ended: float
    status: Status
    group: int
    turns: int
    tokens: int
    verdict: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """A step. taken: when it had its groups; published: its weights; both in seconds, on the run's
    clock. waited: seconds before `taken`. compiled: seconds of compilation since the step before.
    ages: of its groups. stale: groups that were dropped as too old since the step before. lent:
    seconds, of those from `taken` to `published`, for which engines had lent their devices."""

    step: int
    waited: float
    taken: float
    published: float
    compiled: float
    ages: tuple[int, ...]
    stale: int
    lent: float = 0.0


class TimesWriter:
    """Appends what has ended. Thread-safe."""

    def __init__(self, workdir: Path, clock: Callable[[], float] = time.monotonic):
        """clock: of the times that it is given."""
        path = Path(workdir) / TIMES_FILE
        path.unlink(missing_ok=True)
        self._lines, self._begun = LineAppender(path), clock()

    def attempt(self, times: AttemptTimes) -> None:
        self._write(times, "begun", "ended")

    def step(self, times: StepTimes) -> None:
        self._write(times, "taken", "published")

    def _write(self, times: AttemptTimes | StepTimes, *moments: str) -> None:
        values = dataclasses.asdict(times)
        values |= {name: values[name] - self._begun for name in moments}
        self._lines.append(
            {name: round(v, 4) if isinstance(v, float) else v for name, v in values.items()}
        )

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> TimesWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclasses.dataclass(frozen=True)
class Times:
    """What a times.jsonl holds, in the order of its ends."""

    attempts: tuple[AttemptTimes, ...]
    steps: tuple[StepTimes, ...]


def read_times(path: Path) -> Times:
    """Returns the content of a times.jsonl; see `files.read_lines` for what is tolerated."""
    records = read_lines(Path(path), _parse).records
    return Times(
        tuple(each for each in records if isinstance(each, AttemptTimes)),
        tuple(each for each in records if isinstance(each, StepTimes)),
    )


def _parse(line: dict[str, Any]) -> AttemptTimes | StepTimes:
    if "step" in line:
        step = StepTimes(
            step=int(line["step"]),
            waited=_seconds(line["waited"]),
            taken=_seconds(line["taken"]),
            published=_seconds(line["published"]),
            compiled=_seconds(line["compiled"]),
            ages=tuple(map(int, line["ages"])),
            stale=int(line["stale"]),
            lent=_seconds(line.get("lent", 0.0)),
        )
        _require_order(step.taken, step.published)
        return step
    begun, ended = _seconds(line["begun"]), _seconds(line["ended"])
    _require_order(begun, ended)
    return AttemptTimes(
        begun=begun,
        ended=ended,
        status=Status(line["status"]),
        group=int(line["group"]),
        turns=int(line["turns"]),
        tokens=int(line["tokens"]),
        verdict=_seconds(line.get("verdict", 0.0)),
    )


def _seconds(value: Any) -> float:
    if not 0.0 <= (seconds := float(value)) <= LONGEST_S:
        raise ValueError(f"{value!r:.80} is no time since the run began")
    return seconds


def _require_order(first: float, second: float) -> None:
    if second < first:
        raise ValueError(f"what began at {first} s ended at {second} s")
