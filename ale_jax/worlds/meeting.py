"""Rows that a family trains on and another one evaluates, as their files divide equal rows
otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from ale_jax.worlds.families import Family
from ale_jax.worlds.items import EVAL, TRAIN, Items, Name
from ale_jax.worlds.rows import Rows
from ale_jax.worlds.selected import Selected

Content = tuple[type, bytes]  # the class of a world, and a digest of a row


def require_apart(trained: Iterable[Family], evaluated: Iterable[Family]) -> None:
    """Raises ValueError if a family trains on a row that another one evaluates. Compared are
    families of one class of worlds, for which equal rows are equal tasks; what only names a row
    does not count."""
    owners = {content: family for family in evaluated for content, _ in _contents(family, EVAL)}
    for family in trained:
        meeting = [(name, owners[c]) for c, name in _contents(family, TRAIN) if c in owners]
        if meeting:
            name, other = meeting[0]
            raise ValueError(
                f"family {family.name} trains on {len(meeting)} rows that are evaluated, such as "
                f"{name!r:.80}, which {other.name} has, too: give their files one `eval_share`, or "
                f"name the file of {other.name} as the `eval_path` of {family.name}"
            )


def _contents(family: Family, split: str) -> Iterator[tuple[Content, Name]]:
    items: Items = family.items
    chosen: set[Name] | None = None
    if isinstance(items, Selected):
        chosen = set(items.names) if split == TRAIN else None
        items = items.items
    if not isinstance(items, Rows):
        return
    for name, row in items.rows(split).items():
        if chosen is None or name in chosen:
            yield (type(family.world), hashlib.sha256(items.content(row)).digest()), name
