"""The journal: trajectories that came back and were not trained on, for a run that is resumed.

It is a cache: a lost entry costs the time to play an episode again, and nothing else. But no entry
may lead to a group that is trained on twice, to a token of weights that never led to the restored
ones, or to an age outside of the bound. Therefore

- the checkpoint alone decides which groups are admitted, and entries are looked up then;
- an entry is used only if the restored version or an older one sampled all its tokens. Newer
  weights were lost with the interruption, and the resumed run makes others of the same number;
- entries are used only until the resumed run publishes, and those of older weights for no more
  groups than the headroom has. Otherwise groups of the oldest allowed age could hold all permits,
  and a step would wait for ever (docs/staleness.md);
- entries that are used are written again, as results of the resumed run, and the segments that it
  found are deleted before its first checkpoint is begun. So all entries are of weights that led to
  the newest checkpoint, or were sampled since.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.data.staleness import StalenessGate
from ale_jax.data.trajectory_frames import DamagedFrame, encode_frame, read_frames
from ale_jax.records import EpisodeKey, RolloutRequest, Trajectory
from ale_jax.status import STATUS_RULES

JOURNAL_DIR = "journal"
SUFFIX = ".frames"
NUMBER = "[0-9]" * 8  # a pattern of file names


@dataclasses.dataclass
class _Segment:
    path: Path
    groups: set[int] = dataclasses.field(default_factory=set)


class Journal:
    """The segments in `folder`, numbered in the order of writing; only the newest is appended to.

    Frames are flushed to the operating system one by one, so a killed process loses nothing. They
    are not forced to the disk: after a power failure, the checksums find what is missing.
    Thread-safe.

    record: called with each event, like `EventLog.record` (kind, detail, **fields).
    """

    def __init__(self, folder: Path, record: Callable[..., None]):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._record = folder, record
        self._found = sorted(folder.glob(NUMBER + SUFFIX))  # of the run before its interruption
        self._number = int(self._found[-1].stem) if self._found else 0
        self._closed: list[_Segment] = []
        self._lock = threading.Lock()
        self._open()

    def append(self, trajectory: Trajectory) -> None:
        """Writes a trajectory if its reward is valid; others are played again."""
        if not STATUS_RULES[trajectory.episode.status].reward_valid:
            return
        frame = encode_frame(trajectory)
        if frame is None:
            key = trajectory.episode.key
            detail = f"an episode of group {key.group} is too large for a frame of the journal"
            self._record("journal_skipped", detail, group=key.group, member=key.member)
            return
        with self._lock:
            self._file.write(frame)
            self._file.flush()
            self._segment.groups.add(trajectory.episode.key.group)

    def begin_segment(self, is_open: Callable[[int], bool]) -> None:
        """Begins a new segment, and deletes those that were found and those whose groups are all
        closed. It is called before a checkpoint is begun.

        is_open: whether a run that is resumed from the newest durable checkpoint would still play
        a group. The checkpoint that is being begun does not count: until it is durable, the run
        would be resumed from the one before it.
        """
        with self._lock:
            self._file.close()
            self._closed.append(self._segment)
            kept = [each for each in self._closed if any(map(is_open, each.groups))]
            for path in [*self._found, *(each.path for each in self._closed if each not in kept)]:
                path.unlink()
            self._found, self._closed = [], kept
            self._open()

    def recall(self, versions: range, is_open: Callable[[int], bool], sampling: Sampling) -> Recall:
        """Returns what a resumed run can use of the segments that were found.

        versions: of the weights that may have sampled a token, up to the restored version.
        sampling: of the run. Entries that were drawn in another way are not used, and neither are
        those of versions of the program that did not write down how.
        """
        read = (trajectory for path in self._found for trajectory in self._read(path))
        usable = (
            trajectory
            for trajectory in read
            if is_open(trajectory.episode.key.group)
            and trajectory.sampling == sampling
            and all(version in versions for version in _versions(trajectory))
        )
        return Recall(versions[-1], usable, self._record)

    def _open(self) -> None:
        self._number += 1
        self._segment = _Segment(self._folder / f"{self._number:08d}{SUFFIX}")
        self._file: IO[bytes] = self._segment.path.open("xb")

    def _read(self, path: Path) -> Iterable[Trajectory]:
        used = 0
        with path.open("rb") as file:
            try:
                for trajectory in read_frames(file):
                    used = file.tell()
                    yield trajectory
            except DamagedFrame as error:
                unused = path.stat().st_size - used
                detail = f"{path}, byte {used}: {error}; what follows is played again"
                self._record("journal_damaged", detail, unused_bytes=unused)

    def close(self) -> None:
        """Closes the file of the newest segment."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Recall:
    """Trajectories from before an interruption, each of which can be used once.

    version: the restored one. After the next publish, what is left is of no use any more.
    """

    def __init__(
        self, version: int, trajectories: Iterable[Trajectory], record: Callable[..., None]
    ):
        self._version, self._record = version, record
        self._older_groups = collections.Counter[int]()  # taken, by domain: begun before `version`
        self._entries: dict[EpisodeKey, Trajectory] = {t.episode.key: t for t in trajectories}

    def take(self, requests: Sequence[RolloutRequest], gate: StalenessGate) -> list[Trajectory]:
        """Returns the results of those requests of a group that need not be played, each of them
        once.

        A request is answered if the trajectory begins with its very prefix turns, and is fresh
        enough for the gate's version, which is still the restored one.
        """
        if gate.version != self._version:
            self._entries.clear()
        found = ((each, self._entries.pop(each.key, None)) for each in requests)
        known = [
            trajectory
            for request, trajectory in found
            if trajectory is not None
            and _continues(trajectory, request)
            and not gate.too_old(trajectory.start_version)
        ]
        if any(trajectory.start_version < self._version for trajectory in known):
            domain = gate.quotas.domain(known[0].episode.key.group)
            if self._older_groups[domain] == gate.headroom_of(domain):
                return []  # a step's worth of permits is for groups that start now
            self._older_groups[domain] += 1
        if known:
            group, of = known[0].episode.key.group, len(requests)
            detail = f"group {group}: {len(known)} of {of} episodes were played already"
            self._record("journal_recalled", detail, group=group, recalled=len(known), of=of)
        return known


def _versions(trajectory: Trajectory) -> set[int]:
    """Returns the versions of the weights that sampled its tokens, and that of its start."""
    sampled = (turn.version.tolist() for turn in trajectory.sampled_turns)
    return {trajectory.start_version}.union(*sampled)


def _continues(trajectory: Trajectory, request: RolloutRequest) -> bool:
    """Tells whether it begins with the very prefix turns of the request."""
    turns = trajectory.turns[: trajectory.num_prefix_turns]
    return len(turns) == len(request.prefix_turns) and all(
        np.array_equal(ours.prompt_ids, asked.prompt_ids)
        and np.array_equal(ours.action_ids, asked.action_ids)
        for ours, asked in zip(turns, request.prefix_turns)
    )
