"""The families of shell tasks, one file each. The held-out ones compose skills of the others."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from envs.shell.families import (
    census,
    config,
    count,
    log,
    lookup,
    relay,
    rename,
    script,
    sort,
    trail,
)
from envs.shell.world import Generator, World

FAMILIES: Mapping[str, Generator] = {
    "trail": trail.generate,
    "config": config.generate,
    "rename": rename.generate,
    "count": count.generate,
    "script": script.generate,
    "log": log.generate,
    "lookup": lookup.generate,
    "sort": sort.generate,
    "relay": relay.generate,
    "census": census.generate,
}
HELD_OUT_FAMILIES: tuple[str, ...] = ("relay", "census")
TRAIN_FAMILIES: tuple[str, ...] = tuple(f for f in FAMILIES if f not in HELD_OUT_FAMILIES)

SPLITS: Mapping[str, range] = {"train": range(2**30), "eval": range(2**30, 2**31)}


def generate(family: str, seed: int) -> World:
    """The world of `family` and `seed`: the same bytes in every process and on every machine.

    Only another release of numpy may change them: it does not promise to keep its random streams.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}, expected one of: {', '.join(FAMILIES)}")
    # The tag keeps two families with one seed from drawing the same names.
    tag = zlib.crc32(family.encode())
    return FAMILIES[family](np.random.default_rng([tag, seed]))
