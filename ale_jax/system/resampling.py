"""Initialized resampling: decides which task each training group plays, and where it starts."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ale_jax.algo.resampling import (
    CrucialChunk,
    anchor_starts,
    crucial_chunks,
    decision_weights,
    gamma_of_decisions,
    imitation_weights,
    starts_at_beginning,
)
from ale_jax.config.resampling import (
    ADAPTIVE,
    DECISIONS,
    NONE,
    PARALLEL,
    ROLLBACK,
    ResamplingHypers,
)
from ale_jax.data.curriculum import Curriculum, FamilyRates
from ale_jax.data.experts import (
    Expert,
    ExpertStore,
    assign,
    expert_from_json,
    expert_to_json,
)
from ale_jax.data.packing import Sample
from ale_jax.data.replay import Group
from ale_jax.monitor.evaluations import wilson_interval
from ale_jax.monitor.events import Recorder
from ale_jax.records import TRAIN, EpisodeKey, RolloutRequest, Task, Trajectory
from ale_jax.status import Status

REPLAY = "replay"  # the phase of episodes in which nothing is sampled
LATEST = 64  # episodes from the beginning of their task, of which the success is known
DIVERGED_ONCE = "one attempt diverged, and another did not"

Replays = Callable[[Sequence[RolloutRequest]], list[Trajectory]]


@dataclasses.dataclass(frozen=True)
class _Decision:
    """What a group was assigned at its admission.

    expert: the expert whose first `start` turns are the group's prefix; None if the task had none.
    """

    task: Task
    start: int
    expert: Expert | None


class Resampler:
    """Decides at a group's admission which task it plays, and after how many of the expert's turns.

    All members of a group start from the same state, so that the group's mean reward is a baseline
    of that state. A decision holds until the group is trained on, even if the curriculum changes
    meanwhile. It is part of `snapshot`, so that a resumed run plays its open groups as decided. The
    curriculum changes only in `learn`, between two steps, so that a synchronous run does not depend
    on when groups are admitted. An expert whose replay diverges is dropped at once.

    The rollout thread calls `assign` and `note`; the learner's thread calls everything else.
    """

    def __init__(
        self,
        hp: ResamplingHypers,
        task_of: Callable[[int], Task],
        attempts: int,
        seed: int,
        record: Recorder,
        state: Mapping[str, Any] | None = None,
    ):
        """task_of: the training task of a given number. attempts: of each group. state: what a
        `snapshot` made, to resume from."""
        self._hp, self._task_of, self._attempts, self._seed = hp, task_of, attempts, seed
        self._record = record
        self._curriculum = Curriculum(hp.window, hp.memory)
        self._rates = FamilyRates(hp.window)
        self._from_start: deque[bool] = deque(maxlen=LATEST)
        self._experts = ExpertStore()
        self._decided: dict[int, _Decision] = {}
        self._counted: set[int] = set()  # groups whose outcomes are in the curriculum
        self._lock = threading.Lock()
        if state is not None:
            self._curriculum.load(state["curriculum"])
            self._rates.load(state["rates"])
            self._from_start.extend(state["from_start"])
            self._experts = ExpertStore.from_json(state["experts"])
            self._decided = {g: _decision_from_json(d) for g, d in state["decided"]}

    # Called by the rollout thread.

    def assign(self, group: int) -> list[RolloutRequest]:
        """Returns the requests for all attempts of a training group."""
        with self._lock:
            if group not in self._decided:
                self._decided[group] = self._decide(group)
            decision = self._decided[group]
        keys = (
            EpisodeKey(TRAIN, group, member, decision.task, decision.start)
            for member in range(self._attempts)
        )
        return [assign(key, decision.expert) for key in keys]

    def note(self, trajectory: Trajectory) -> None:
        """Checks a finished episode of a training group, and drops its expert if the expert could
        not be replayed."""
        episode = trajectory.episode
        if _diverged(trajectory):  # even if another attempt replayed the expert without divergence
            with self._lock:
                expert = self._decided[episode.key.group].expert
                assert expert is not None, "only a replay of an expert can diverge"
                known = self._experts.drop(expert)
            if known:
                self._refuse(expert, episode.detail or DIVERGED_ONCE)

    def _decide(self, group: int) -> _Decision:
        number, anchor = divmod(group, self._hp.groups_per_task)
        task = self._task_of(number)
        expert = None if self._hp.scheme == NONE else self._experts.get(task)
        if expert is None:
            start = 0
        elif self._hp.scheme == ADAPTIVE:
            start = self._drawn_start(group, expert)
        elif self._hp.scheme == PARALLEL:
            drawn = self._hp.anchor_choice == "random"
            # All groups of a task draw from one generator, so that their anchors differ.
            rng = np.random.default_rng([self._seed, number]) if drawn else None
            start = anchor_starts(len(expert.turns), self._hp.anchors, rng)[anchor]
        else:
            start = self._curriculum.start(task)
        return _Decision(task, start, expert)

    def _drawn_start(self, group: int, expert: Expert) -> int:
        if starts_at_beginning(group, self._hp.from_start):
            return 0
        rng = np.random.default_rng([self._seed, group])
        return self._rates.draw(expert.task.family, len(expert.turns), rng)

    # Called by the learner's thread.

    def admit(self, candidates: Iterable[Expert], replay: Replays) -> None:
        """Replays each candidate to its end, and stores it as an expert if the replay gives the
        same observations and the same reward. The others are refused, with an event for each."""
        candidates = list(candidates)
        keys = (
            EpisodeKey(REPLAY, number, 0, expert.task, len(expert.turns))
            for number, expert in enumerate(candidates)
        )
        checks = [assign(key, expert) for key, expert in zip(keys, candidates)]
        for expert, replayed in zip(candidates, replay(checks) if checks else ()):
            if replayed.episode.reward == expert.reward and not _diverged(replayed):
                self._put(expert)
            else:
                self._refuse(expert, _why_not(replayed, expert))

    def learn(self, groups: Sequence[Group], version: int, replay: Replays) -> None:
        """Updates the curriculum and the experts with the groups that a step was trained on."""
        with self._lock:
            for group in groups:
                if group.index not in self._counted:
                    self._counted.add(group.index)
                    self._count(group, version)
        if self._hp.scheme == NONE:
            return
        played = (t for group in groups for t in group.valid)
        self.admit(self._experts.best_of(played), replay)

    def imitation(self, groups: Sequence[Group], gamma: float) -> list[Sample]:
        """Returns the first sum of Eq 10. For each group that was forked off an expert and has no
        success, it takes the expert's chunks up to and including the first one that the group
        played."""
        if self._hp.scheme == NONE or not self._hp.imitation_weight:
            return []
        return [self._imitated(d, number, gamma) for number, d in self._lost_forks(groups)]

    def _imitated(self, decision: _Decision, group: int, gamma: float) -> Sample:
        expert, start = decision.expert, decision.start
        assert expert is not None, "only forks off an expert are imitated"
        num_chunks, shown = len(expert.turns), start + 1
        weight = self._hp.imitation_weight
        family = expert.task.family
        if self._hp.imitation == DECISIONS:
            changed_C = decision_weights(self._rates.known(family), num_chunks)
            weight_P = weight * expert.reward * changed_C[:shown]
        else:
            weight_P = imitation_weights(start, num_chunks, expert.reward, gamma, weight)
        if self._hp.imitation_fades:
            rates = [self._rates.rate(family, num_chunks - k) for k in range(shown)]
            weight_P *= 1.0 - np.array(rates, np.float32)
        return Sample(
            turns=expert.turns[:shown],
            advantage_C=np.zeros(0, np.float32),
            num_prefix_turns=shown,
            group=group,
            imitate_P=weight_P,
        )

    def _lost_forks(self, groups: Sequence[Group]) -> list[tuple[int, _Decision]]:
        """Number and decision of the groups that were forked off an expert and have no success."""
        decided = ((number, self._decided[g.index], g) for number, g in enumerate(groups))
        return [
            (n, d)
            for n, d, g in decided
            if d.expert
            and (d.start or self._hp.imitates_at_start)
            and not any(t.episode.is_solved for t in g.valid)
        ]

    def success_from_start(self) -> float:
        """Returns the share of successes among the latest episodes from the beginning of their
        task; 0 until there are enough."""
        if len(self._from_start) < LATEST:
            return 0.0
        return sum(self._from_start) / LATEST

    def forget(self, keep: Iterable[int]) -> None:
        """Drops the decisions of all groups except `keep`; they will not be seen again."""
        keep = set(keep)
        with self._lock:
            self._decided = {g: d for g, d in self._decided.items() if g in keep}
            self._counted &= keep

    def figures(self, groups: Sequence[Group], version: int) -> dict[str, float]:
        """Returns the step's metrics. `success` and `reward` mix all starts; here, those from the
        task's beginning are separate."""
        starts = [g.members[0].episode.key.num_prefix_turns for g in groups]
        played = [(k, t.episode) for k, g in zip(starts, groups) for t in g.valid]
        from_start = [episode for k, episode in played if k == 0]
        resampled = [episode for k, episode in played if k > 0]
        attempts = Counter(status for g in groups for t in g.members for status in _ends(t))
        values: dict[str, float] = {f"unjudged/{s}": n for s, n in sorted(attempts.items())}
        if self._hp.scheme != NONE:
            values["experts"] = len(self._experts)
            values["prefix_turns_mean"] = float(np.mean(starts))
            values["crucial_chunks"] = sum(len(c) for c in self.crucial(version).values())
            values["groups_resampled"] = sum(k > 0 for k in starts)
            imitated = self._hp.imitation_weight and len(self._lost_forks(groups))
            values["groups_imitated"] = int(imitated)
            values |= self._measured_gammas()
            for name, episodes in (("from_start", from_start), ("resampled", resampled)):
                if episodes:
                    values[f"success_{name}"] = float(np.mean([e.is_solved for e in episodes]))
                    values[f"reward_{name}"] = float(np.mean([e.reward for e in episodes]))
        return values

    def _measured_gammas(self) -> dict[str, float]:
        """By family, see `gamma_of_decisions`; none of those in which nothing was measured."""
        families = self._rates.families()
        found = {family: gamma_of_decisions(self._rates.known(family)) for family in families}
        return {f"gamma_of_decisions/{f}": gamma for f, gamma in found.items() if gamma is not None}

    def crucial(self, version: int) -> dict[Task, tuple[CrucialChunk, ...]]:
        """Returns the crucial chunks, as far as they are known, of each task that has an expert."""
        known = ((task, self._experts.get(task)) for task in self._curriculum.tasks())
        return {
            task: self._crucial(expert, version) for task, expert in known if expert is not None
        }

    def _crucial(self, expert: Expert, version: int) -> tuple[CrucialChunk, ...]:
        counts = self.counts(expert, version)
        return crucial_chunks([won for won, _ in counts], [played for _, played in counts])

    def counts(self, expert: Expert, version: int) -> list[tuple[int, int]]:
        """Returns the successes and attempts from each of the expert's chunks."""
        chunks = range(len(expert.turns))
        return [self._curriculum.counts(expert.task, k, version) for k in chunks]

    @property
    def experts(self) -> ExpertStore:
        return self._experts

    def snapshot(self, open_groups: Iterable[int]) -> Callable[[], dict[str, Any]]:
        """Takes the state that a resumed run needs, and returns a function that makes JSON of it:
        experts are long, and most snapshots are never saved. It includes only the decisions for
        `open_groups`, which the resumed run plays again."""
        with self._lock:
            curriculum, experts = self._curriculum.to_json(), self._experts.copy()
            rates, from_start = self._rates.to_json(), list(self._from_start)
            decided = [(g, self._decided[g]) for g in open_groups]
        return lambda: {
            "curriculum": curriculum,
            "rates": rates,
            "from_start": from_start,
            "experts": experts.to_json(),
            "decided": [[g, _decision_to_json(decision)] for g, decision in decided],
        }

    def _count(self, group: Group, version: int) -> None:
        outcomes = [t.episode.is_solved for t in group.valid]
        if self._hp.scheme == NONE:  # and nothing was decided that another run would not decide
            self._from_start.extend(outcomes)
            return
        decision = self._decided[group.index]
        if not decision.start:
            self._from_start.extend(outcomes)
        task, start, expert = decision.task, decision.start, self._experts.get(decision.task)
        if decision.expert:
            left = len(decision.expert.turns) - start
            self._rates.record(task.family, left, outcomes)
        if start and not _passes(decision.expert, expert, start):
            return  # the task has another expert by now, which does not pass through this start
        self._curriculum.record(task, start, version, outcomes)
        if self._hp.scheme == ROLLBACK and 0 < start == self._curriculum.start(task):
            low, _ = wilson_interval(*self._curriculum.counts(task, start, version))
            if low >= self._hp.threshold:
                self._curriculum.move(task, start - 1)

    def _put(self, expert: Expert) -> None:
        with self._lock:
            before, last = self._experts.get(expert.task), len(expert.turns) - 1
            self._experts.put(expert)
            if before is None:
                self._curriculum.forget_after(expert.task, 0)
                self._curriculum.move(expert.task, last)
            else:
                self._curriculum.forget_after(expert.task, before.shared_turns(expert))
                start = self._curriculum.start(expert.task)
                self._curriculum.move(expert.task, min(start, last))

    def _refuse(self, expert: Expert, detail: str) -> None:
        task = expert.task
        text = f"the expert of {task.family} {task.item} could not be replayed: {detail}"
        self._record("expert_refused", text, family=task.family, item=task.item)


def _passes(forked: Expert | None, expert: Expert | None, start: int) -> bool:
    """Whether the expert that a task has now begins with the same `start` turns as the one that a
    group was forked off."""
    assert forked is not None, "a group without an expert starts at the beginning"
    return expert is not None and forked.shared_turns(expert) >= start


def _ends(trajectory: Trajectory) -> list[str]:
    """The statuses of those attempts of an episode that were not trained on."""
    last = trajectory.episode.status
    invalid = trajectory.episode.reward is None
    return [status.value for status in (*trajectory.rejected, *((last,) if invalid else ()))]


def _diverged(trajectory: Trajectory) -> bool:
    return Status.REPLAY_DIVERGED in (trajectory.episode.status, *trajectory.rejected)


def _why_not(replayed: Trajectory, expert: Expert) -> str:
    episode = replayed.episode
    if episode.reward is None:
        return episode.detail or episode.status
    if _diverged(replayed):
        return DIVERGED_ONCE
    return f"it earned {episode.reward:g} where it had earned {expert.reward:g}"


def _decision_to_json(decision: _Decision) -> dict[str, Any]:
    return {
        "task": dataclasses.asdict(decision.task),
        "start": decision.start,
        "expert": decision.expert and expert_to_json(decision.expert),
    }


def _decision_from_json(values: Mapping[str, Any]) -> _Decision:
    expert = values["expert"] and expert_from_json(values["expert"])
    return _Decision(Task(**values["task"]), values["start"], expert)
