"""Where training is in its tasks, and what an evaluation of some counts."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ale_jax.data.replay import Group
from ale_jax.data.staleness import age
from ale_jax.errors import RunFailed
from ale_jax.monitor.evaluations import Evaluation, FamilyResult
from ale_jax.records import Episode, Trajectory
from ale_jax.worlds.schedule import Schedule


def require_judged(evaluation: Evaluation, episodes: int) -> None:
    """Raises RunFailed if less than half of the episodes could be judged: the rate over the rest
    would depend on which episodes the system could finish, and not only on the policy."""
    if 2 * evaluation.judged < episodes:
        raise RunFailed(
            f"of {episodes} episodes of evaluation {evaluation.name} only {evaluation.judged} "
            "could be judged: see events.jsonl for how the others ended, remove the cause, and "
            "continue the run with the same command"
        )


def tally(
    name: str,
    step: int,
    seconds: float,
    trajectories: Sequence[Trajectory],
    schedule: Schedule,
) -> Evaluation:
    """Counts successes per family. An episode that the system could not finish, even after
    retries, says nothing about the policy and is not counted."""
    judged: defaultdict[str, list[Episode]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.episode.reward is not None:
            judged[trajectory.episode.key.task.family].append(trajectory.episode)
    families = {
        family: FamilyResult(
            successes=sum(episode.is_solved for episode in judged[family]),
            tasks=len(judged[family]),
            held_out=family in schedule.held_out_families,
            reward=float(np.mean([episode.reward for episode in judged[family]])),
        )
        for family in (*schedule.train_families, *schedule.held_out_families)
        if family in judged
    }
    return Evaluation(name, step, seconds, families)


@dataclasses.dataclass(frozen=True)
class Cursor:
    """The position of training. Counts are over the whole run, in trajectories and tokens.

    step: number of updates, which is the version of the weights.
    groups: indices that were taken from the task stream and not trained on yet. They are played
        first, again if necessary.
    next_group: the index at which the task stream continues.
    resampling: what `Resampler.snapshot` made, in a checkpoint; None before the first step, and in
        cursors that are not saved.
    """

    step: int = 0
    groups: tuple[int, ...] = ()
    next_group: int = 0
    episodes: int = 0
    policy_tokens: int = 0
    dropped_stale: int = 0
    dropped_failed: int = 0
    dropped_equal: int = 0
    max_staleness: int = 0
    resampling: dict[str, Any] | None = None

    def is_open(self, group: int) -> bool:
        """Returns whether a run that continues here still plays the group."""
        return group in self.groups or group >= self.next_group

    def after(self, groups: Sequence[Group]) -> Cursor:
        """Returns the cursor after an update on `groups`, which increments the version of the
        weights."""
        members = [t for group in groups if not group.is_reused for t in group.members]
        ages = [age(self.step, t.start_version) for group in groups for t in group.valid]
        return dataclasses.replace(
            self,
            step=self.step + 1,
            episodes=self.episodes + len(members),
            policy_tokens=self.policy_tokens + sum(t.num_policy_tokens for t in members),
            max_staleness=max(self.max_staleness, *ages),
        )


class GroupStream(Iterator[int]):
    """Indices of training groups: first those that are open in a checkpoint, then new ones."""

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
        """The checkpoint's open groups that were not requested yet. With alpha above 1 and few
        rollout workers, not all of them are admitted within one step."""
        return tuple(self._open)
