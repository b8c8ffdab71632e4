"""Notes, within a run, what becomes of its episodes and groups; `history.py` reads the notes.

A line is appended to the file of the run's mark when the run is restored, when an episode begins or
has come back, when a group is dropped, and when a step is trained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from ale_jax.data.replay import ReplayBuffer
from ale_jax.data.staleness import StalenessGate
from ale_jax.records import TRAIN
from ale_jax.system.rollouts.workers import RolloutWorkers
from ale_jax.system.tasks import Cursor, GroupStream
from benchmarks.survival.processes import MARK


class Notes:
    def __init__(self) -> None:
        self._file = os.open(os.environ[MARK], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _write(self, **line: Any) -> None:
        # One write per line, so that a killed process leaves whole lines.
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def restored(self, stream, cursor) -> None:
        self._write(kind="restored", step=cursor.step)

    def begun(self, workers, request, sampling) -> None:
        if request.key.phase == TRAIN:
            self._write(kind="begun", member=[request.key.group, request.key.member])

    def back(self, buffer, trajectory) -> None:
        key, turns = trajectory.episode.key, trajectory.turns[trajectory.num_prefix_turns :]
        if trajectory.episode.reward is not None:
            versions = [int(version) for turn in turns for version in turn.version]
            versions = [trajectory.start_version, max(versions, default=-1)]
            self._write(kind="back", member=[key.group, key.member], versions=versions)

    def trained(self, cursor, groups) -> None:
        oldest = max(cursor.step - group.start_version for group in groups)
        numbers = [group.index for group in groups]
        self._write(kind="trained", step=cursor.step + 1, groups=numbers, oldest=oldest)

    def dropped(self, gate, group, reason) -> None:
        self._write(kind="dropped", group=group)


def watch() -> None:
    notes = Notes()
    # An episode is noted as back only after the run has done with it whatever it does.
    after(ReplayBuffer, "add", notes.back)
    after(RolloutWorkers, "submit", notes.begun)
    after(GroupStream, "__init__", notes.restored)
    after(Cursor, "after", notes.trained)
    after(StalenessGate, "drop", notes.dropped)


def after(owner: type, name: str, note: Callable[..., None]) -> None:
    """Calls `note` after a method, with the arguments that have no names."""
    function = getattr(owner, name)

    def noted(self, *arguments, **named):
        result = function(self, *arguments, **named)
        note(self, *arguments)
        return result

    setattr(owner, name, noted)
