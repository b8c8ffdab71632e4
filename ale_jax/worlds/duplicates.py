"""Finds evaluation items that training has almost, word for word."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from ale_jax.worlds.finite import Finite
from ale_jax.worlds.items import EVAL, TRAIN, Name

WORDS = 8  # of an n-gram; texts that are shorter are compared as a whole
SHARE = 0.8  # of an item's n-grams, from which it is a duplicate
COMMON = 50  # an n-gram of more training items is the task's wording, and says nothing


@dataclasses.dataclass(frozen=True)
class Duplicate:
    """An evaluation item, and the training item that shares most of its n-grams. share: of them."""

    evaluated: Name
    trained: Name
    share: float


def near_duplicates(items: Finite) -> Iterator[Duplicate]:
    """Yields the evaluation items of which a training item has at least SHARE of the n-grams.

    Compared are the texts of all columns, in lower case and without punctuation. An n-gram that
    more than COMMON training items have is left out.
    """
    found: dict[str, list[Name]] = defaultdict(list)
    for name, row in items.rows(TRAIN).items():
        for gram in _grams(name, row):
            if len(found[gram]) <= COMMON:
                found[gram].append(name)
    for name, row in items.rows(EVAL).items():
        grams = [gram for gram in _grams(name, row) if len(found.get(gram, ())) <= COMMON]
        shared = Counter(trained for gram in grams for trained in found.get(gram, ()))
        if shared:
            trained, count = shared.most_common(1)[0]
            if count >= SHARE * len(grams):
                yield Duplicate(name, trained, count / len(grams))


def _grams(name: Name, row: Mapping[str, Any]) -> set[str]:
    told = (value for value in row.values() if value != name)
    texts = (value for value in told if isinstance(value, str | int | float))
    words = re.findall(r"\w+", " ".join(map(str, texts)).lower())
    size = min(WORDS, len(words))
    return {" ".join(words[i : i + size]) for i in range(len(words) - size + 1)} - {""}
