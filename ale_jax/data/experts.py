"""Expert-like trajectories, one per task, and the curriculum of where episodes start in them.

The curriculum keeps, per task, the start that is practised and how the episodes ended that started
there.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ale_jax.data.packing import text_turn
from ale_jax.records import EpisodeKey, Prefix, RolloutRequest, Status, Task, Trajectory, Turn

TEACHER = -1  # in place of the version of the weights: nobody sampled it


@dataclasses.dataclass(frozen=True)
class Expert:
    """A success at a task, the policy's own or a teacher's, up to the call that ended it.

    turns: each with the ids that were read and written and their texts; log-probabilities 0,
    versions -1, rewards 0: whoever continues them did not sample them.
    version: of the weights that began it, or TEACHER. reward: what it earned.
    """

    task: Task
    turns: tuple[Turn, ...]
    version: int
    reward: float

    def __post_init__(self) -> None:
        assert self.turns and self.reward > 0, self.task

    @classmethod
    def of(cls, trajectory: Trajectory) -> Expert:
        """Of a success."""
        episode = trajectory.episode
        turns = tuple(
            text_turn(t.prompt_ids, t.action_ids, t.prompt_text, t.action_text)
            for t in trajectory.turns
        )
        return cls(episode.key.task, turns, trajectory.start_version, episode.reward)

    @property
    def num_tokens(self) -> int:
        return sum(len(t.prompt_ids) + len(t.action_ids) for t in self.turns)

    def shared_turns(self, other: Expert) -> int:
        """How many first actions both have in common: after them they are in one state."""
        pairs = zip(self.turns, other.turns)
        differ = (i for i, (a, b) in enumerate(pairs) if a.action_text != b.action_text)
        return next(differ, min(len(self.turns), len(other.turns)))


def assign(key: EpisodeKey, expert: Expert | None) -> RolloutRequest:
    """`key` as it is played: after the expert's first `key.num_prefix_turns` turns."""
    if key.num_prefix_turns == 0:
        return RolloutRequest(key)
    assert expert is not None and key.task == expert.task, key
    prefix_turns = expert.turns[: key.num_prefix_turns]
    # After the last turn there is no observation: slicing ends where the turns do.
    seen = tuple(turn.prompt_text for turn in expert.turns[: key.num_prefix_turns + 1])
    return RolloutRequest(
        key, prefix_turns, Prefix(seen, tuple(turn.action_text for turn in prefix_turns))
    )


def is_success(trajectory: Trajectory) -> bool:
    """Whether it can be an expert: it ended by its own word, and was judged right."""
    episode = trajectory.episode
    return episode.status == Status.FINISHED and episode.reward > 0 and bool(trajectory.turns)


class ExpertStore:
    """The newest and shortest expert of each task.

    A candidate takes the place of the one that is there if it has no more chunks. Shorter: fewer
    chances to go wrong. At equal length the newer: it is nearer to what the policy does now, and
    so the trajectory is refreshed as the policy changes. As many as there are tasks, and no more.
    """

    def __init__(self, experts: Iterable[Expert] = ()):
        self._experts = {expert.task: expert for expert in experts}

    def __len__(self) -> int:
        return len(self._experts)

    def get(self, task: Task) -> Expert | None:
        return self._experts.get(task)

    def wants(self, candidate: Expert) -> bool:
        """Whether the candidate would take a place, and is not there already."""
        held = self._experts.get(candidate.task)
        if held is None:
            return True
        newer = candidate.version >= held.version
        fewer = len(candidate.turns) < len(held.turns)
        return not self._is_held(candidate) and (
            fewer or (newer and len(candidate.turns) == len(held.turns))
        )

    def put(self, expert: Expert) -> None:
        self._experts[expert.task] = expert

    def drop(self, expert: Expert) -> bool:
        """Takes the task's expert out if it acts as this one does; False if it does not."""
        found = self._is_held(expert)
        if found:
            del self._experts[expert.task]
        return found

    def _is_held(self, expert: Expert) -> bool:
        """By what it does: after a resume an open group's expert is a record of its own."""
        held = self._experts.get(expert.task)
        return held is not None and (
            held.shared_turns(expert) == len(held.turns) == len(expert.turns)
        )

    def best_of(self, trajectories: Iterable[Trajectory]) -> list[Expert]:
        """The candidates among them that are wanted, one per task at most: of the fewest chunks,
        then the newest, then the first."""
        best: dict[Task, Expert] = {}
        for candidate in map(Expert.of, filter(is_success, trajectories)):
            rival = best.get(candidate.task)
            if rival is None or _rank(candidate) < _rank(rival):
                best[candidate.task] = candidate
        return [candidate for candidate in best.values() if self.wants(candidate)]

    def to_json(self) -> list[dict[str, Any]]:
        return [expert_to_json(expert) for expert in self._experts.values()]

    @classmethod
    def from_json(cls, values: Sequence[Mapping[str, Any]]) -> ExpertStore:
        return cls(map(expert_from_json, values))


def _rank(expert: Expert) -> tuple[int, int]:
    return len(expert.turns), -expert.version


def expert_to_json(expert: Expert) -> dict[str, Any]:
    return {
        "task": dataclasses.asdict(expert.task),
        "version": expert.version,
        "reward": expert.reward,
        "turns": [
            [t.prompt_ids.tolist(), t.action_ids.tolist(), t.prompt_text, t.action_text]
            for t in expert.turns
        ],
    }


def expert_from_json(values: Mapping[str, Any]) -> Expert:
    turns = tuple(text_turn(*turn) for turn in values["turns"])
    return Expert(Task(**values["task"]), turns, values["version"], values["reward"])


@dataclasses.dataclass
class _TaskOutcomes:
    """Of a task: the start that is practised, and (version, success) by the start, latest last."""

    start: int = 0
    outcomes: dict[int, deque[tuple[int, bool]]] = dataclasses.field(default_factory=dict)


class Curriculum:
    """The state of the curriculum. It decides nothing: whoever holds it knows the rule.

    window: outcomes that are kept of each (task, start). memory: versions after which they are not
    counted any more, because the policy has become another.
    """

    def __init__(self, window: int, memory: int):
        self._window, self._memory = window, memory
        self._tasks: dict[Task, _TaskOutcomes] = {}

    def start(self, task: Task) -> int:
        return self._of_task(task).start

    def move(self, task: Task, start: int) -> None:
        assert start >= 0, start
        self._of_task(task).start = start

    def record(self, task: Task, start: int, version: int, successes: Iterable[bool]) -> None:
        """Notes how episodes ended that started there, trained on at `version`."""
        empty: deque = deque(maxlen=self._window)
        kept = self._of_task(task).outcomes.setdefault(start, empty)
        kept.extend((version, bool(success)) for success in successes)

    def counts(self, task: Task, start: int, version: int) -> tuple[int, int]:
        """Successes and attempts from `start`, of those that still count at `version`."""
        outcomes = self._of_task(task).outcomes.get(start, ())
        fresh = [success for then, success in outcomes if version - then < self._memory]
        return sum(fresh), len(fresh)

    def forget_after(self, task: Task, shared: int) -> None:
        """The task has another expert, of which only the first `shared` turns are the same: what
        happened from later starts was another state's."""
        outcomes = self._of_task(task).outcomes
        for start in [start for start in outcomes if start > shared]:
            del outcomes[start]

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "task": dataclasses.asdict(task),
                "start": of_task.start,
                "outcomes": [
                    [start, [list(outcome) for outcome in outcomes]]
                    for start, outcomes in of_task.outcomes.items()
                ],
            }
            for task, of_task in self._tasks.items()
        ]

    def load(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Takes up what `to_json` gave."""
        for each in values:
            of_task = self._tasks[Task(**each["task"])] = _TaskOutcomes(each["start"])
            for start, outcomes in each["outcomes"]:
                kept = (tuple(outcome) for outcome in outcomes)
                of_task.outcomes[start] = deque(kept, maxlen=self._window)

    def _of_task(self, task: Task) -> _TaskOutcomes:
        return self._tasks.setdefault(task, _TaskOutcomes())
