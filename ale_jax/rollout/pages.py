"""Which conversations have which pages of the cache."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np


def prefix_keys(ids: Sequence[int], page_tokens: int, version: int | None) -> list[bytes]:
    """One key per full page of `ids`: a digest of the weights' version and of all ids up to the
    page's end. Version None: pages of all versions have the same keys."""
    digest = hashlib.sha256(repr(version).encode())
    keys = []
    for end in range(page_tokens, len(ids) + 1, page_tokens):
        digest.update(np.asarray(ids[end - page_tokens : end], np.int32).tobytes())
        keys.append(digest.digest())
    return keys


class PagePool:
    """Counts who uses each page. A page that nobody uses is free, or keeps what it holds under its
    key until it is needed: the longest unused goes first."""

    def __init__(self, num_pages: int):
        self._free = deque(range(num_pages))
        self._users = [0] * num_pages
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._unused: OrderedDict[int, None] = (
            OrderedDict()
        )  # these have keys; longest unused first

    def take(self, keys: Sequence[bytes], count: int) -> tuple[list[int], int] | None:
        """`count` pages, and how many of them, at the front, already hold what `keys` name.

        None if there are not so many: then nothing has changed.
        """
        if not self.can_give(keys, count):
            return None
        known = self._holding(keys)
        for page in known:
            self._unused.pop(page, None)
            self._users[page] += 1
        return known + [self._new() for _ in range(count - len(known))], len(known)

    def can_give(self, keys: Sequence[bytes], count: int) -> bool:
        """Whether `take` would."""
        known = self._holding(keys)
        reused = sum(page in self._unused for page in known)
        return count - len(known) <= self.free - reused

    @property
    def free(self) -> int:
        """Pages that nobody uses."""
        return len(self._free) + len(self._unused)

    def known(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, name what a page holds."""
        return len(self._holding(keys))

    def name(self, page: int, key: bytes) -> None:
        """The page, in use and not written again, holds what `key` names, for others to use.

        If another page does already, or this one has a name, nothing changes.
        """
        assert self._users[page] > 0, page
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key

    def release(self, pages: Sequence[int]) -> None:
        # The last page first: without those before it, a page is of no use to anybody.
        for page in reversed(pages):
            assert self._users[page] > 0, page
            self._users[page] -= 1
            if self._users[page] == 0:
                if page in self._key_of:
                    self._unused[page] = None
                else:
                    self._free.append(page)

    def _holding(self, keys: Sequence[bytes]) -> list[int]:
        held = []
        for key in keys:
            if (page := self._page_of.get(key)) is None:
                break
            held.append(page)
        return held

    def _new(self) -> int:
        if self._free:
            page = self._free.popleft()
        else:
            page, _ = self._unused.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        self._users[page] = 1
        return page
