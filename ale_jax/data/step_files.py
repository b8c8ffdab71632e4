"""What each step of a run was trained on, for `ale-jax replay`: a file of frames for each step.

A file holds every member of the step's groups, in the order of training. It is written before the
state after the step is saved, so that no checkpoint is of a step whose file is missing. A step that
a resumed run makes again replaces its file.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path

from ale_jax.data.replay import Group
from ale_jax.data.trajectory_frames import DamagedFrame, encode_frame, read_frames
from ale_jax.errors import RunFailed
from ale_jax.files import write_atomically

STEPS_DIR = "steps"
START_DIR = "start"  # the state before the first step, as a checkpoint
SUFFIX = ".frames"


def write_step(folder: Path, step: int, groups: Sequence[Group]) -> None:
    """Writes the file of a step. Errors: OSError; RunFailed if an episode is too large."""
    frames = []
    for group in groups:
        for member in group.members:
            frame = encode_frame(member)
            if frame is None:
                raise RunFailed(
                    f"an episode of group {group.index} is too large to be recorded: set "
                    "rl.record_steps to False and start anew"
                )
            frames.append(frame)
    write_atomically(_file(folder, step), frames)


def read_step(folder: Path, step: int, used: Collection[int] = ()) -> list[Group]:
    """Reads the groups of a step. used: indices of the groups that earlier steps had.

    Errors: OSError; DamagedFrame, a ValueError, if the file is not as it was written.
    """
    with _file(folder, step).open("rb") as file:
        members, end = [], 0
        for member in read_frames(file):
            members.append(member)
            end = file.tell()
        # `read_frames` ends at a frame that was cut off, which a journal may end with.
        if end != file.seek(0, io.SEEK_END):
            raise DamagedFrame(f"{file.name} is cut off after {len(members)} episodes")
    by_group = itertools.groupby(members, key=lambda member: member.episode.key.group)
    return [Group(index, tuple(of_group), is_reused=index in used) for index, of_group in by_group]


def recorded_steps(folder: Path) -> int:
    """Counts the steps from the first one on that have a file."""
    return next(step for step in itertools.count() if not _file(folder, step + 1).exists())


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}{SUFFIX}"
