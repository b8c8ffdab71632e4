"""The seeds for training and for evaluation, which are the same for all families."""

from __future__ import annotations

from collections.abc import Mapping

SPLITS: Mapping[str, range] = {"train": range(2**30), "eval": range(2**30, 2**31)}


def split_of(seed: int) -> str:
    """The split of a seed. ValueError if it is in no split."""
    for split, seeds in SPLITS.items():
        if seed in seeds:
            return split
    raise ValueError(f"seed {seed} is in no split: take 0..{SPLITS['eval'].stop - 1}")


def require_split(split: str) -> str:
    """Returns `split`. ValueError if there is no split of that name."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}, expected one of: {', '.join(SPLITS)}")
    return split


def require_seed(seed: int, split: str) -> int:
    """Returns `seed`. ValueError unless it belongs to `split`."""
    seeds = SPLITS[split]
    if seed not in seeds:
        raise ValueError(
            f"seed {seed} is not of split {split!r}: take {seeds.start}..{seeds.stop - 1}"
        )
    return seed
