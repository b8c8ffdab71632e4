"""What the rollout workers need of those that play their attempts: Ray actors, or threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ale_jax.records import Episode, EpisodeKey, Prefix


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


class Playing(Protocol):
    """An attempt that is being played."""

    @property
    def where(self) -> str:
        """By whom it is played, in words."""

    def cancel(self) -> None:
        """Tells the attempt to end, and returns at once."""

    def give_up(self, reason: str) -> None:
        """Ends an attempt that did not end after it was cancelled. It counts as lost."""

    def result(self) -> Episode:
        """Returns the episode, once the pool says that it has finished. WorkerLost if there is
        none. What else it raises is a bug."""


class WorkerPool(Protocol):
    """One thread calls all methods but `waiting_for`."""

    @property
    def free(self) -> int:
        """Number of attempts that can begin."""

    @property
    def counts(self) -> PoolCounts: ...

    def play(self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None) -> Playing:
        """Begins an attempt; there must be a free place. url: of the gateway, which knows the
        conversation by its name."""

    def finished(self, timeout: float) -> Sequence[Playing]:
        """Returns all attempts that have finished since the last call, as soon as there is one;
        none after `timeout` seconds, or before, if something else has happened."""

    def check(self) -> None:
        """Raises RolloutsFailed if nothing can be played any more."""

    def waiting_for(self) -> str:
        """Returns what the pool itself waits for, in words; empty if for nothing. From any
        thread."""

    def close(self) -> None:
        """Ends all attempts and sandboxes."""
