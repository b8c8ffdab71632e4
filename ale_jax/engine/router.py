"""The choice among engines that are as good as each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class Router:
    """Sends each conversation to the engine with the fewest, and the members of a group to one
    engine if it is as free as the others, because they share the pages of their prompt.

    What a conversation samples depends on its key alone, not on the engine.
    """

    def __init__(self, engines: int):
        self._open = Counter(dict.fromkeys(range(engines), 0))
        self._groups: Counter[tuple[int, Hashable]] = Counter()
        self._closed: set[int] = set()

    def enter(self, group: Hashable) -> int:
        """Returns the number of the engine for one more conversation of the group."""

        def load(number: int) -> tuple[int, int]:
            return self._open[number], -self._groups[number, group]

        number = min(self._open.keys() - self._closed, key=load)
        self._open[number] += 1
        self._groups[number, group] += 1
        return number

    def leave(self, number: int, group: Hashable) -> None:
        """Says that one of its conversations with an engine has ended."""
        self._open[number] -= 1
        self._groups[number, group] -= 1
        if not self._groups[number, group]:
            del self._groups[number, group]

    def close(self, number: int) -> None:
        """Sends nobody to this engine, until `open`. Others must be open."""
        self._closed.add(number)

    def open(self, number: int) -> None:
        """Sends conversations to this engine again."""
        self._closed.discard(number)
