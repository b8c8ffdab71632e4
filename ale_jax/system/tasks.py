"""Where training is in its tasks, and what an evaluation of some counts."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ale_jax.config.run import RunConfig
from ale_jax.data.quotas import Quotas
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
    next_groups: the indices from which the task stream continues, by domain.
    round: as `Quotas`, of the stream.
    resampling: what `Resampler.snapshot` made, in a checkpoint; None before the first step, and in
        cursors that are not saved.
    """

    step: int = 0
    groups: tuple[int, ...] = ()
    next_groups: tuple[int, ...] = (0,)
    round: tuple[int, ...] = (0,)
    episodes: int = 0
    policy_tokens: int = 0
    dropped_stale: int = 0
    dropped_failed: int = 0
    dropped_equal: int = 0
    max_staleness: int = 0
    resampling: dict[str, Any] | None = None

    @classmethod
    def begin(cls, config: RunConfig) -> Cursor:
        """Returns the position of a new run."""
        ratios = [domain.ratio for domain in config.worlds.train]
        quotas = Quotas.of_ratios(ratios, config.resampling.groups_per_task)
        return cls(next_groups=tuple(0 for _ in quotas.domains), round=quotas.round)

    @classmethod
    def restore(cls, saved: Mapping[str, Any]) -> Cursor:
        """Returns the position that was saved with a checkpoint. ValueError if the version that
        wrote it had one position for all domains."""
        if "next_groups" not in saved:
            raise ValueError(
                "the checkpoint has no next_groups, as it is of an earlier version of ALE-JAX: use "
                "the version that wrote it, or start a new run"
            )
        lists = {name: tuple(saved[name]) for name in ("groups", "next_groups", "round")}
        return cls(**{**saved, **lists})

    def is_open(self, group: int) -> bool:
        """Returns whether a run that continues here still plays the group."""
        domain = Quotas(self.round).domain(group)
        return group in self.groups or group >= self.next_groups[domain]

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


class GroupStream:
    """Indices of training groups: of each domain first those that are open in a checkpoint, then
    new ones."""

    def __init__(self, cursor: Cursor):
        self._open, self._next = list(cursor.groups), list(cursor.next_groups)
        self._quotas = Quotas(cursor.round)

    def take(self, domain: int) -> int:
        """Returns the next group of a domain."""
        for group in self._open:
            if self._quotas.domain(group) == domain:
                self._open.remove(group)
                return group
        index = self._quotas.first(domain, self._next[domain])
        self._next[domain] = index + 1
        return index

    @property
    def next_groups(self) -> tuple[int, ...]:
        """As `Cursor.next_groups`."""
        return tuple(self._next)

    @property
    def left_open(self) -> tuple[int, ...]:
        """The checkpoint's open groups that were not requested yet. With alpha above 1 and few
        rollout workers, not all of them are admitted within one step."""
        return tuple(self._open)
