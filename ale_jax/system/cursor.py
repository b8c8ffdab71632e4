"""The position of training in its run: what a checkpoint stores beside the weights."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ale_jax.data.replay import Group
from ale_jax.data.staleness import age


@dataclasses.dataclass(frozen=True)
class Cursor:
    """Where training stands. Counts are over the whole run, in trajectories and tokens.

    step: updates made, which is the version of the weights.
    groups: indices taken from the task stream and not trained on yet; they are played (again)
    first.
    next_group: the index at which the task stream continues.
    resampling: state of `Resampler.to_json`; None before the first step, and after steps that are
    not followed by a checkpoint.
    """

    step: int = 0
    groups: tuple[int, ...] = ()
    next_group: int = 0
    episodes: int = 0
    policy_tokens: int = 0
    dropped_stale: int = 0
    dropped_failed: int = 0
    max_staleness: int = 0
    resampling: dict[str, Any] | None = None

    def after(self, groups: Sequence[Group]) -> Cursor:
        """The cursor after an update on `groups`, which increments the version of the weights."""
        members = [t for group in groups for t in group.members]
        ages = [age(self.step, t.start_version) for group in groups for t in group.valid]
        return dataclasses.replace(
            self,
            step=self.step + 1,
            episodes=self.episodes + len(members),
            policy_tokens=self.policy_tokens + sum(t.num_policy_tokens for t in members),
            max_staleness=max(self.max_staleness, *ages),
        )


class GroupStream(Iterator[int]):
    """Indices of training groups: first those that a checkpoint left open, then new ones."""

    def __init__(self, cursor: Cursor):
        self._open = deque(cursor.groups)
        self._new = itertools.count(cursor.next_group)
        self.next_group = cursor.next_group

    def __next__(self) -> int:
        if self._open:
            return self._open.popleft()
        index = next(self._new)
        self.next_group = index + 1
        return index

    @property
    def left_open(self) -> tuple[int, ...]:
        """Groups of the checkpoint that were not requested yet. With alpha above 1 and few rollout
        workers, not all of them are admitted within one step."""
        return tuple(self._open)
