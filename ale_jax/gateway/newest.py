"""The newest of what clients may ask for again, as far as there is room for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

MAX_KEPT = 4096
MAX_CHARS = 1 << 28


class Newest(Generic[Value]):
    """The newest values, by their keys. Not thread-safe."""

    def __init__(self, max_kept: int = MAX_KEPT, max_chars: int = MAX_CHARS):
        """max_chars: of all values; what several of them share is counted in each."""
        self._max_kept, self._max_chars = max_kept, max_chars
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._chars = 0

    def get(self, key: Hashable) -> Value | None:
        value, _ = self._kept.get(key, (None, 0))
        return value

    def keep(self, key: Hashable, value: Value, chars: int) -> None:
        """Takes the place of the value that had this key. The oldest ones are forgotten until all
        others have room, also this one if it alone has too many characters."""
        self.forget(key)
        self._kept[key] = value, chars
        self._chars += chars
        while len(self._kept) > self._max_kept or self._chars > self._max_chars:
            self.forget(next(iter(self._kept)))

    def forget(self, key: Hashable) -> None:
        """Does nothing if there is no such value."""
        _, chars = self._kept.pop(key, (None, 0))
        self._chars -= chars
