"""The families of shell tasks, one file each. The held-out families combine skills of the others;
the long families take up to a dozen steps, more than the default configs allow."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from ale_jax.envs.shell.families import (
    census,
    config,
    count,
    lane,
    log,
    lookup,
    relay,
    rename,
    script,
    sort,
    trail,
    trek,
    vault,
)
from ale_jax.envs.shell.task import Generator, ShellTask

FAMILIES: Mapping[str, Generator] = {
    "trail": trail.generate,
    "config": config.generate,
    "rename": rename.generate,
    "count": count.generate,
    "script": script.generate,
    "log": log.generate,
    "lookup": lookup.generate,
    "sort": sort.generate,
    "lane": lane.generate,
    "relay": relay.generate,
    "census": census.generate,
    "trek": trek.generate,
    "vault": vault.generate,
}
HELD_OUT_FAMILIES: tuple[str, ...] = ("relay", "census")
LONG_FAMILIES: tuple[str, ...] = ("trek", "vault")
TRAIN_FAMILIES: tuple[str, ...] = tuple(
    f for f in FAMILIES if f not in (*HELD_OUT_FAMILIES, *LONG_FAMILIES)
)


def generate(family: str, seed: int) -> ShellTask:
    """The task of `family` and `seed`: the same bytes in every process and on every machine.

    Only another release of NumPy may change them, as it does not guarantee stable random streams.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}, expected one of: {', '.join(FAMILIES)}")
    # The tag prevents two families from drawing the same names for the same seed.
    tag = zlib.crc32(family.encode())
    return FAMILIES[family](np.random.default_rng([tag, seed]))
