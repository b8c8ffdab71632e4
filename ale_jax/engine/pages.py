"""Assigns pages of the cache to conversations."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np


class Weights(NamedTuple):
    """What computes the pages of a conversation. version: None if pages of all versions count as
    equal. adapter: the number of the one that the conversation uses."""

    version: int | None
    adapter: int = 0


class PageKeys:
    """The prefix cache's keys of the pages that a conversation fills: digests of what computes them
    and of all ids up to a page's end. weights: as `Scheduler` tells those of a conversation."""

    def __init__(self, page_tokens: int, weights: Weights):
        self._page_tokens = page_tokens
        self._digest = hashlib.sha256(repr(weights).encode())
        # The ids of the last page, which is not full.
        self._begun: np.ndarray = np.zeros((0,), np.int32)

    def add(self, ids: Sequence[int] | np.ndarray) -> list[bytes]:
        """Returns the keys of the pages that these ids fill."""
        open_ids = np.concatenate([self._begun, np.asarray(ids, np.int32)])
        keys: list[bytes] = []
        size = self._page_tokens
        for start in range(0, len(open_ids) - size + 1, size):
            self._digest.update(open_ids[start : start + size].tobytes())
            keys.append(self._digest.digest())
        self._begun = open_ids[len(keys) * size :]
        return keys


def prefix_keys(ids: Sequence[int] | np.ndarray, page_tokens: int, weights: Weights) -> list[bytes]:
    """Returns the keys of all full pages of `ids`."""
    return PageKeys(page_tokens, weights).add(ids)


class PagePool:
    """Counts the users of each page. A page without users is free, or keeps its content under its
    key until it is needed; the least recently used page is taken first."""

    def __init__(self, num_pages: int):
        self._free = deque(range(num_pages))
        self._users = [0] * num_pages
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        # Pages with a key and without users, the least recently used first.
        self._unused: OrderedDict[int, None] = OrderedDict()

    def allocate(self, keys: Sequence[bytes], count: int) -> tuple[list[int], int] | None:
        """`count` pages, and how many of them, at the front, already hold what `keys` name.

        None if there are not enough pages; then nothing changes.
        """
        if not self.can_allocate(keys, count):
            return None
        known = self._cached_pages(keys)
        for page in known:
            self._unused.pop(page, None)
            self._users[page] += 1
        return known + [self._new() for _ in range(count - len(known))], len(known)

    def can_allocate(
        self, keys: Sequence[bytes], count: int, released: Iterable[Sequence[int]] = ()
    ) -> bool:
        """Returns whether `allocate` would succeed once the pages in `released`, those of some
        users, are."""
        users = Counter(chain.from_iterable(released))
        freed = {page for page, each in users.items() if each == self._users[page]}
        known = self._cached_pages(keys)
        reused = sum(page in self._unused or page in freed for page in known)
        return count - len(known) <= self.free + len(freed) - reused

    @property
    def free(self) -> int:
        """The number of pages without users."""
        return len(self._free) + len(self._unused)

    def num_cached(self, keys: Sequence[bytes]) -> int:
        """Returns how many of the keys, counted from the first, name the content of a page."""
        return len(self._cached_pages(keys))

    def register(self, page: int, key: bytes) -> None:
        """Registers the content of a page under `key`, for others to use. The page must be in use,
        and its content stays.

        Nothing changes if another page already has this key, or this page has one.
        """
        assert self._users[page] > 0, page
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key

    def release(self, pages: Sequence[int]) -> None:
        # Last page first, so that it is taken first: a page is useless without those before it.
        for page in reversed(pages):
            assert self._users[page] > 0, page
            self._users[page] -= 1
            if self._users[page] == 0:
                if page in self._key_of:
                    self._unused[page] = None
                else:
                    self._free.append(page)

    def _cached_pages(self, keys: Sequence[bytes]) -> list[int]:
        found = []
        for key in keys:
            if (page := self._page_of.get(key)) is None:
                break
            found.append(page)
        return found

    def _new(self) -> int:
        if self._free:
            page = self._free.popleft()
        else:
            page, _ = self._unused.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        self._users[page] = 1
        return page
