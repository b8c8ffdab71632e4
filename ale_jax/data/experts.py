"""Expert-like trajectories, one per task, in which episodes may start."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ale_jax.data.packing import text_turn
from ale_jax.records import EpisodeKey, Prefix, RolloutRequest, Task, Trajectory, Turn
from ale_jax.status import Status

TEACHER = -1  # the version of an expert that no weights of the run sampled


@dataclasses.dataclass(frozen=True)
class Expert:
    """A successful trajectory of the policy or of a teacher, up to the call that ended it.

    turns: each with the ids that were read and written and their texts. Log-probabilities are 0,
    versions -1 and rewards 0, because the episodes that continue these turns did not sample them.
    version: of the weights that began the trajectory, or TEACHER. reward: of the trajectory.
    """

    task: Task
    turns: tuple[Turn, ...]
    version: int
    reward: float

    def __post_init__(self) -> None:
        assert self.turns and self.reward > 0.0, self.task

    @classmethod
    def of(cls, trajectory: Trajectory) -> Expert:
        """Makes an expert from a successful trajectory (`is_expert`)."""
        episode = trajectory.episode
        assert episode.reward is not None, episode
        turns = tuple(
            text_turn(t.prompt_ids, t.action_ids, t.prompt_text, t.action_text)
            for t in trajectory.turns
        )
        return cls(episode.key.task, turns, trajectory.start_version, episode.reward)

    @property
    def num_tokens(self) -> int:
        return sum(len(t.prompt_ids) + len(t.action_ids) for t in self.turns)

    def shared_turns(self, other: Expert) -> int:
        """Counts the first actions that both experts have in common; after them both are in one
        state."""
        pairs = zip(self.turns, other.turns)
        differ = (i for i, (a, b) in enumerate(pairs) if a.action_text != b.action_text)
        return next(differ, min(len(self.turns), len(other.turns)))


def assign(key: EpisodeKey, expert: Expert | None) -> RolloutRequest:
    """Returns the request for `key`, which starts after the expert's first `key.num_prefix_turns`
    turns.

    expert: that of the key's task; None is enough for an episode that starts at the beginning.
    """
    if key.num_prefix_turns == 0:
        return RolloutRequest(key)
    assert expert is not None and key.task == expert.task, key
    prefix_turns = expert.turns[: key.num_prefix_turns]
    # There is no observation after the last turn; the slice then ends with the turns.
    seen = tuple(turn.prompt_text for turn in expert.turns[: key.num_prefix_turns + 1])
    return RolloutRequest(
        key, prefix_turns, Prefix(seen, tuple(turn.action_text for turn in prefix_turns))
    )


def is_expert(trajectory: Trajectory) -> bool:
    """Tells whether a trajectory can become an expert: the agent ended it, and solved the task."""
    episode = trajectory.episode
    return episode.status == Status.FINISHED and episode.is_solved and bool(trajectory.turns)


class ExpertStore:
    """The newest and shortest expert of each task.

    A candidate replaces the stored expert if it has fewer chunks, because these are fewer chances
    to go wrong. At equal length the newer of the two is kept: it is closer to what the policy does
    now, so the expert is refreshed as the policy changes. There is at most one expert per task.

    An expert of three chunks is replaced by one of two, whatever their versions, and that one by
    another of two chunks only if this is newer:

        >>> def expert(chunks, version):
        ...     turns = (text_turn([1], [2], action_text=str(version)),) * chunks
        ...     return Expert(Task("files", 7, "train"), turns, version, reward=1.0)
        >>> store = ExpertStore([expert(3, version=5)])
        >>> store.wants(expert(2, version=4)), store.wants(expert(3, version=4))
        (True, False)
    """

    def __init__(self, experts: Iterable[Expert] = ()):
        self._experts = {expert.task: expert for expert in experts}

    def __len__(self) -> int:
        return len(self._experts)

    def copy(self) -> ExpertStore:
        """Returns another store of the same experts, which changes by itself."""
        return ExpertStore(self._experts.values())

    def get(self, task: Task) -> Expert | None:
        """Returns the task's expert; None if it has none."""
        return self._experts.get(task)

    def wants(self, candidate: Expert) -> bool:
        """Tells whether the candidate should be stored, and is not stored already."""
        held = self._experts.get(candidate.task)
        if held is None:
            return True
        newer = candidate.version >= held.version
        fewer = len(candidate.turns) < len(held.turns)
        return not self._is_held(candidate) and (
            fewer or (newer and len(candidate.turns) == len(held.turns))
        )

    def put(self, expert: Expert) -> None:
        """Stores the expert of its task, in place of the one before."""
        self._experts[expert.task] = expert

    def drop(self, expert: Expert) -> bool:
        """Removes the task's expert if its actions are those of `expert`; False if they are not."""
        found = self._is_held(expert)
        if found:
            del self._experts[expert.task]
        return found

    def _is_held(self, expert: Expert) -> bool:
        """Compares actions, because after a resume an open group holds a copy of its expert."""
        held = self._experts.get(expert.task)
        return held is not None and (
            held.shared_turns(expert) == len(held.turns) == len(expert.turns)
        )

    def best_of(self, trajectories: Iterable[Trajectory]) -> list[Expert]:
        """Returns the wanted candidates among the trajectories, at most one per task: the one with
        the fewest chunks, then the newest, then the first."""
        best: dict[Task, Expert] = {}
        for candidate in map(Expert.of, filter(is_expert, trajectories)):
            rival = best.get(candidate.task)
            if rival is None or _rank(candidate) < _rank(rival):
                best[candidate.task] = candidate
        return [candidate for candidate in best.values() if self.wants(candidate)]

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the state for a checkpoint, as `from_json` takes it."""
        return [expert_to_json(expert) for expert in self._experts.values()]

    @classmethod
    def from_json(cls, values: Sequence[Mapping[str, Any]]) -> ExpertStore:
        """Restores a store from what `to_json` returned."""
        return cls(map(expert_from_json, values))


def _rank(expert: Expert) -> tuple[int, int]:
    return len(expert.turns), -expert.version


def expert_to_json(expert: Expert) -> dict[str, Any]:
    """Returns an expert's task, version, reward and turns as plain JSON."""
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
    """Restores an expert from what `expert_to_json` returned."""
    turns = tuple(text_turn(*turn) for turn in values["turns"])
    return Expert(Task(**values["task"]), turns, values["version"], values["reward"])
