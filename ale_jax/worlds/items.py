"""The items of a family: each is one task, has a name, and belongs to one split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

TRAIN, EVAL = "train", "eval"
SPLITS = (TRAIN, EVAL)

Name = int | str


def require_split(split: str) -> str:
    """Returns `split`. ValueError if there is no split of that name."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}, expected one of: {', '.join(SPLITS)}")
    return split


@dataclasses.dataclass(frozen=True)
class Item:
    """One item of a world, as its methods get it.

    family: the world's own name of it. name: of the item; a whole number, its seed, where items are
    made from seeds. row: what a file says of it, also by `item["column"]`.
    """

    family: str
    name: Name
    split: str
    row: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def seed(self) -> int:
        """The seed of an item that is made from one."""
        assert isinstance(self.name, int), f"{self} is a row, which has no seed"
        return self.name

    def __getitem__(self, column: str) -> Any:
        """ValueError if the item has no such column."""
        if column not in self.row:
            raise ValueError(
                f"item {self.name!r} of {self.family!r} has no {column!r}: it has "
                f"{', '.join(self.row) or 'no columns'}"
            )
        return self.row[column]


@runtime_checkable
class Items(Protocol):
    """The items of one family."""

    def at(self, folder: Path) -> Items:
        """Returns these items with relative paths taken from `folder`, the world's."""

    def count(self, split: str) -> int | None:
        """Returns the number of items of a split; None: there is no end of them."""

    # In what follows, `nth` counts the items that a family has given so far, for finite ones, and
    # `draw` is a number that none of them shares, for items that are drawn.

    def train(self, seed: int, draw: int, nth: int) -> Name:
        """Returns a training item of a run with this seed. Finite items come up once in each epoch,
        in an order of its own."""

    def evaluation(self, draw: int, nth: int) -> Name:
        """Returns an evaluation item, the same in every run."""

    def demonstrated(self, seed: int, count: int) -> list[Name]:
        """Returns training items for the warm start."""

    def probe(self, seed: int, draw: int, nth: int) -> tuple[Name, str]:
        """Returns an item, and its split, that is neither demonstrated nor evaluated, by which the
        warm start decides when to stop."""

    def find(self, family: str, name: Name, split: str) -> Item:
        """Returns the item of a name. ValueError if the split has none of that name."""

    def digest(self) -> str:
        """Returns what changes when an item does; "" if only code decides what they are."""


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Items without end, which the world makes from a whole number. The splits are halves of all
    numbers, so a world must not make the same task of two seeds where that would matter."""

    def at(self, folder: Path) -> Seeds:
        return self

    def count(self, split: str) -> None:
        require_split(split)

    def train(self, seed: int, draw: int, nth: int) -> int:
        seeds = SEEDS[TRAIN]
        return int(np.random.default_rng([seed, draw]).integers(seeds.start, seeds.stop))

    def evaluation(self, draw: int, nth: int) -> int:
        return SEEDS[EVAL].start + draw

    def demonstrated(self, seed: int, count: int) -> list[Name]:
        # A stream of its own: no group of training has this number.
        seeds, rng = SEEDS[TRAIN], np.random.default_rng([seed, 1 << 32])
        return [int(seed) for seed in rng.integers(seeds.start, seeds.stop, count)]

    def probe(self, seed: int, draw: int, nth: int) -> tuple[Name, str]:
        return SEEDS[EVAL].start + PROBE_OFFSET + draw, EVAL

    def find(self, family: str, name: Name, split: str) -> Item:
        seeds = SEEDS[require_split(split)]
        if not isinstance(name, int) or isinstance(name, bool) or name not in seeds:
            raise ValueError(
                f"seed {name!r} is not of split {split!r}: take {seeds.start}..{seeds.stop - 1}"
            )
        return Item(family, name, split)

    def digest(self) -> str:
        return ""


# No evaluation plays so many tasks.
PROBE_OFFSET = 1 << 20
SEEDS: Mapping[str, range] = {TRAIN: range(2**30), EVAL: range(2**30, 2**31)}


def split_of(seed: int) -> str:
    """Returns the split of a seed. ValueError if it is in no split."""
    for split, seeds in SEEDS.items():
        if seed in seeds:
            return split
    raise ValueError(f"seed {seed} is in no split: take 0..{SEEDS[EVAL].stop - 1}")
