"""Families of finitely many items, each of which has a row of its own."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from ale_jax.worlds.items import EVAL, TRAIN, Item, Name, require_split

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Finite(abc.ABC):
    """Items that come from `path`, which is relative to the folder of the world's module."""

    path: str
    folder: Path = dataclasses.field(default=Path(), kw_only=True)

    @abc.abstractmethod
    def read(self) -> Mapping[str, Mapping[Name, Row]]:
        """Returns the rows by split and name. ValueError for what is not there or damaged."""

    @abc.abstractmethod
    def digest(self) -> str:
        """Returns what changes when an item does."""

    def at(self, folder: Path) -> Self:
        """Returns these items with relative paths taken from `folder`."""
        return dataclasses.replace(self, folder=folder)

    def count(self, split: str) -> int:
        """Returns the number of items of a split."""
        return len(self.rows(split))

    def rows(self, split: str) -> Mapping[Name, Row]:
        """Returns the items of a split by their names."""
        return self._rows[require_split(split)]

    def train(self, seed: int, draw: int, nth: int) -> Name:
        """Returns the item that comes up as the `nth` one: each epoch is a permutation of all."""
        epoch, place = divmod(nth, self.count(TRAIN))
        order = permutation(seed, zlib.crc32(self.path.encode()), epoch, self.count(TRAIN))
        return self._names[TRAIN][order[place]]

    def evaluation(self, draw: int, nth: int) -> Name:
        """Returns the evaluation item `nth`, in the order in which they were read."""
        return self._names[EVAL][nth]

    def demonstrated(self, seed: int, count: int) -> list[Name]:
        """Returns the first items of the first epoch; at most all."""
        return [self.train(seed, nth, nth) for nth in range(min(count, self.count(TRAIN)))]

    def probe(self, seed: int, draw: int, nth: int) -> tuple[Name, str]:
        """Returns items from the end of the first epoch."""
        last = self.count(TRAIN) - 1
        return self.train(seed, last - nth, last - nth), TRAIN

    def find(self, family: str, name: Name, split: str) -> Item:
        """Returns the item of a name. ValueError if the split has none of that name."""
        row = self.rows(split).get(name)
        if row is None:
            raise ValueError(f"{self.path} has no item {name!r:.80} in its split {split!r}")
        return Item(family, name, split, row)

    @functools.cached_property
    def _rows(self) -> Mapping[str, Mapping[Name, Row]]:
        return self.read()

    @functools.cached_property
    def _names(self) -> Mapping[str, tuple[Name, ...]]:
        return {split: tuple(rows) for split, rows in self._rows.items()}


def divided(
    rows: Mapping[Name, Row], contents: Mapping[Name, bytes], eval_share: float
) -> dict[str, dict[Name, Row]]:
    """Returns the rows by split. What an item is decides its split, and not its place, so that it
    stays there when others are added, and that equal ones are in the same."""
    split: dict[str, dict[Name, Row]] = {TRAIN: {}, EVAL: {}}
    for name, row in rows.items():
        digest = hashlib.sha256(contents[name]).digest()
        is_evaluated = int.from_bytes(digest[:8]) < eval_share * 2**64
        split[EVAL if is_evaluated else TRAIN][name] = row
    return split


@functools.lru_cache(maxsize=16)
def permutation(seed: int, tag: int, epoch: int, count: int) -> tuple[int, ...]:
    """Returns the order in which items come up in an epoch. tag: of the items, such as of their
    file."""
    rng = np.random.default_rng([seed, tag, epoch])
    return tuple(rng.permutation(count).tolist())
