"""Checks of a world by playing it: its tasks can be solved, not by doing nothing, and stay as
they are.

Each item is played twice by the world's oracle, if it has one, and twice by doing nothing, each
time from the beginning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ale_jax.agent.loop import ScriptedPolicy
from ale_jax.agent.recording import RecordingPolicy
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.status import STATUS_RULES
from ale_jax.worlds.api import Message
from ale_jax.worlds.families import Family

ORACLE, NOTHING = "the oracle", "doing nothing"
PLAYS = 2  # of the same: the fewest that can differ


@dataclasses.dataclass(frozen=True)
class Played:
    """One play of an item: its episode, and all that was said."""

    episode: Episode
    messages: tuple[Message, ...]

    @property
    def reward(self) -> float | None:
        """None if there was no verdict."""
        is_judged = STATUS_RULES[self.episode.status].reward_valid
        return self.episode.reward if is_judged else None

    @property
    def is_solved(self) -> bool:
        return self.reward is not None and self.episode.is_solved


@dataclasses.dataclass(frozen=True)
class ItemReport:
    """What became of one item. oracle, nothing: the plays; no `oracle` if nobody knows the
    solution. faults: what is wrong with the item, one sentence each."""

    task: Task
    oracle: tuple[Played, ...]
    nothing: tuple[Played, ...]
    faults: tuple[str, ...]


class Validator:
    """Checks items, which `runner` plays."""

    def __init__(self, runner: EpisodeRunner):
        self._runner = runner

    def check(
        self, family: Family, tasks: Sequence[Task], workers: int = 1
    ) -> Iterator[ItemReport]:
        """Yields the report of each task, in order. workers: tasks that are played at once."""
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(lambda task: self.check_item(family, task), tasks)

    def check_item(self, family: Family, task: Task) -> ItemReport:
        """Plays a task and returns its report."""
        try:
            replies = [family.replies(task) for _ in range(PLAYS)]
        except Exception as error:  # of any kind: it is the world's own code
            return ItemReport(task, (), (), (f"{ORACLE}: {type(error).__name__}: {error}",))
        oracle = tuple(self._play(task, ORACLE, each) for each in replies if each is not None)
        nothing = tuple(self._play(task, NOTHING, (family.world.nothing,)) for _ in range(PLAYS))
        faults = (*_faults(ORACLE, oracle, True), *_faults(NOTHING, nothing, False))
        return ItemReport(task, oracle, nothing, faults)

    def _play(self, task: Task, who: str, replies: Sequence[str]) -> Played:
        policy = RecordingPolicy(ScriptedPolicy(replies))
        key = EpisodeKey(phase=who, group=task.number, member=0, task=task)
        # It ends with its last reply: neither player has anything else to say.
        episode = self._runner.play(key, policy, attempt=object(), turns=len(replies)).episode
        return Played(episode, tuple(policy.messages))


def _faults(who: str, plays: Sequence[Played], wanted: bool) -> Iterator[str]:
    """Yields what is wrong with the plays of one player. wanted: whether it should solve the
    task."""
    for each in plays:
        if each.reward is None:
            yield f"{who}: no verdict: {each.episode.status}: {each.episode.detail}"
            return
    rewards = [each.reward for each in plays]
    if len(set(rewards)) > 1:
        yield f"{who} is judged differently each time: {', '.join(f'{r:g}' for r in rewards)}"
    elif any(each.is_solved != wanted for each in plays):
        yield f"{who} earns {rewards[0]:g}, and {plays[0].episode.solved_at:g} is solved"
    if len({each.messages for each in plays}) > 1:
        yield f"{who} reads something else the second time: {_difference(*plays)}"


def _difference(first: Played, second: Played) -> str:
    for number, (one, other) in enumerate(zip(first.messages, second.messages, strict=False)):
        if one != other:
            return f"message {number} ({one.role}) {one.content!r:.80}, then {other.content!r:.80}"
    return f"{len(first.messages)} messages, then {len(second.messages)}"
