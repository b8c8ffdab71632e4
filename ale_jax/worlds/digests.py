"""By what two processes, or two days of a run, know that their tasks are the same."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ale_jax.worlds.families import Families, Family
from ale_jax.worlds.names import is_ours
from ale_jax.worlds.selected import Selected

Digests = tuple[tuple[str, str], ...]  # by the names of families


def digests(families: Families) -> Digests:
    """Returns a digest of the code and the items of each family. OSError or ValueError if its files
    cannot be read."""
    return tuple((family.name, _digest(family)) for family in families)


def choices(families: Families) -> dict[str, str]:
    """Returns a digest of the choice of each family whose training items are chosen."""
    return {f"the choice of {name}": items.choice for name, items in _selected(families)}


def selections(families: Families) -> list[str]:
    """Returns how many items of these families are chosen, for people."""
    return [items.account for _, items in _selected(families)]


def _selected(families: Families) -> Iterator[tuple[str, Selected]]:
    for family in families:
        if isinstance(family.items, Selected):
            yield family.name, family.items


def differing(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Returns the families of both that are not the same."""
    return [name for name in wanted if name in found and found[name] != wanted[name]]


def _digest(family: Family) -> str:
    return hashlib.sha256(_code(family) + family.items.digest().encode()).hexdigest()


def _code(family: Family) -> bytes:
    """Returns the source of a world's module, and for ours of all modules beside it. What the
    module imports is not part of it, as a process imports more over time."""
    world = type(family.world)
    path = sys.modules[world.__module__].__file__
    if path is None:
        return b""
    files = sorted(Path(path).parent.glob("*.py")) if is_ours(world) else [Path(path)]
    return b"".join(file.read_bytes() for file in files)
