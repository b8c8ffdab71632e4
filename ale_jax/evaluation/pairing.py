"""Pairs the episodes of two results by item and sample."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from ale_jax.evaluation.episodes import EpisodeRecord, ItemKey, Result

Pair = tuple[EpisodeRecord, EpisodeRecord]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """items: at least one pair of each item, both of which were judged. lost: pairs of which one or
    both have no verdict, by item. unpaired: how many of what cannot be paired, by the reason."""

    items: Mapping[ItemKey, tuple[Pair, ...]]
    lost: Mapping[ItemKey, tuple[Pair, ...]]
    unpaired: Mapping[str, int]


def pair(first: Result, second: Result) -> Pairs:
    """Pairs what both have played of the same item of the same world.

    ValueError if there is nothing to compare, which says why.
    """
    ours, theirs = _by_place(first), _by_place(second)
    unpaired: collections.Counter[str] = collections.Counter()
    for name, its, others in ((first.name, ours, theirs), (second.name, theirs, ours)):
        common = {key for key, _ in others}
        unpaired[f"items that only {name} has"] += len({k for k, _ in its} - common)
        unpaired[f"samples that only {name} has"] += sum(
            (key, sample) not in others for key, sample in its if key in common
        )
    judged: dict[ItemKey, list[Pair]] = {}
    lost: dict[ItemKey, list[Pair]] = {}
    for place in ours.keys() & theirs.keys():
        both = ours[place], theirs[place]
        if reason := _difference(*both):
            unpaired[reason] += 1
        else:
            kept = judged if both[0].judged and both[1].judged else lost
            kept.setdefault(place[0], []).append(both)
    missing = [
        sum(not both[side].judged for its in lost.values() for both in its) for side in (0, 1)
    ]
    for name, count in zip((first.name, second.name), missing, strict=True):
        unpaired[f"pairs without a verdict of {name}"] += count
    told = {reason: count for reason, count in unpaired.items() if count}
    if not judged:
        reasons = ", ".join(f"{count} {reason}" for reason, count in told.items())
        raise ValueError(f"{first.name} and {second.name} have no judged pair in common: {reasons}")
    return Pairs(_in_order(judged), _in_order(lost), told)


def _difference(one: EpisodeRecord, other: EpisodeRecord) -> str:
    if one.world_digest != other.world_digest:
        return "pairs of which the world's code or data differ"
    return "pairs of which the item's metadata differ" if one.metadata != other.metadata else ""


def _by_place(result: Result) -> dict[tuple[ItemKey, int], EpisodeRecord]:
    return {(each.key, each.sample): each for each in result.episodes}


def _in_order(found: Mapping[ItemKey, list[Pair]]) -> dict[ItemKey, tuple[Pair, ...]]:
    """Sorted, so that what follows does not depend on the order in which episodes ended."""
    by_name = sorted(found, key=lambda key: (*key[:2], str(key[2])))
    return {key: tuple(sorted(found[key], key=lambda both: both[0].sample)) for key in by_name}
