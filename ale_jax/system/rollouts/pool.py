"""What the rollout workers need of those that play their attempts: Ray actors, or threads."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ale_jax.records import Episode, EpisodeKey, Prefix

PLACES, REWARD_WORKERS = "places", "reward_workers"  # roles, as metrics name them


class WorkerLost(Exception):
    """Whoever played the attempt is gone. left: together with its node, so that this says nothing
    of the attempt."""

    def __init__(self, detail: str, left: bool = False):
        super().__init__(detail)
        self.left = left


class PoolCounts(NamedTuple):
    """What a pool counts of its sandboxes. sandboxes_up: at present. sandboxes_restarted: since the
    pool was opened."""

    sandboxes_up: int
    sandboxes_restarted: int


class Load(NamedTuple):
    """Of those who do one kind of work: how many there are, are busy, and how much work waits."""

    size: int
    busy: int
    waiting: int


class AttemptStage(enum.Enum):
    """What an attempt has come to. It keeps its place while it is PLAYED; QUEUED is one that waits
    for a reward worker, JUDGED one that has it, and UNJUDGED one whose verdict has failed, but can
    be asked for again."""

    PLAYED = "is played"
    QUEUED = "waits for its verdict"
    JUDGED = "is judged"
    UNJUDGED = "has no verdict yet"
    OVER = "is over"


class Playing(Protocol):
    """An attempt that is being played, or judged."""

    @property
    def where(self) -> str:
        """By whom it is played, in words."""

    @property
    def stage(self) -> AttemptStage: ...

    def cancel(self) -> None:
        """Tells the attempt to end, and returns at once. One that is UNJUDGED is over then, and
        `moved` does not return it again."""

    def judge_again(self) -> None:
        """Lets an attempt that is UNJUDGED wait for another verdict."""

    def give_up(self, reason: str) -> None:
        """Ends an attempt that did not end after it was cancelled. It counts as lost."""

    def result(self) -> Episode:
        """Returns the episode, once it is over, or UNJUDGED: with the failure of its verdict.
        WorkerLost if there is none. What else it raises is a bug."""


class WorkerPool(Protocol):
    """One thread calls all methods but `waiting_for`."""

    @property
    def free(self) -> int:
        """Number of attempts that can begin."""

    @property
    def counts(self) -> PoolCounts: ...

    @property
    def judges(self) -> Load:
        """The reward workers."""

    def play(self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None) -> Playing:
        """Begins an attempt; there must be a free place. url: of the gateway, which knows the
        conversation by its name."""

    def moved(self, timeout: float) -> Sequence[Playing]:
        """Returns all attempts that have come to another stage since the last call, as soon as
        there is one, each once; none after `timeout` seconds, or before, if something else has
        happened."""

    def check(self) -> None:
        """Raises RolloutsFailed if nothing can be played any more."""

    def waiting_for(self) -> str:
        """Returns what the pool itself waits for, in words; empty if for nothing. From any
        thread."""

    def close(self) -> None:
        """Ends all attempts and sandboxes."""
