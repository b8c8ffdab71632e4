"""Reward workers: threads that make verdicts while the places of the episodes are free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ale_jax.system.rollouts.pool import Load

T = TypeVar("T")


class RewardWorkers(Generic[T]):
    """Which attempts the reward workers of one process judge, and which wait for one, first come
    first served. One thread calls all methods."""

    def __init__(self, number: int):
        self._number = number
        self._waiting: dict[T, None] = {}  # in order
        self.judged: set[T] = set()  # at present

    @property
    def load(self) -> Load:
        return Load(self._number, len(self.judged), len(self._waiting))

    def put(self, attempt: T) -> None:
        """Lets an attempt wait for its verdict."""
        assert self._number, "without reward workers, verdicts are made in the episodes' places"
        self._waiting[attempt] = None

    def begin(self) -> Iterator[T]:
        """Yields the attempts whose verdicts have a worker from now on."""
        while self._waiting and len(self.judged) < self._number:
            attempt = next(iter(self._waiting))
            del self._waiting[attempt]
            self.judged.add(attempt)
            yield attempt

    def leave(self, attempt: T) -> None:
        """Forgets an attempt, whose worker is free now if it had one."""
        self.judged.discard(attempt)
        self._waiting.pop(attempt, None)
