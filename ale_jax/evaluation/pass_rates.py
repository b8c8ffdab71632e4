"""How often each item was solved, by which training items can be chosen (`worlds.selected`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ale_jax.evaluation.episodes import EpisodeRecord
from ale_jax.files import write_json
from ale_jax.worlds.selected import RATES_FILE


def write_pass_rates(folder: Path, episodes: Iterable[EpisodeRecord]) -> None:
    """Writes of each item, by world and family, how many of its judged samples were solved, and how
    many were judged. Items without a verdict are left out."""
    counts: dict[str, dict[str, dict[str | int, list[int]]]] = {}
    for each in episodes:
        if each.judged:
            family = counts.setdefault(each.world, {}).setdefault(each.family, {})
            count = family.setdefault(each.item, [0, 0])
            count[0] += each.solved
            count[1] += 1
    content = {
        world: {
            family: [[item, *count] for item, count in items.items()]
            for family, items in families.items()
        }
        for world, families in counts.items()
    }
    write_json(folder / RATES_FILE, content, indent=None)
