"""Vault (long): a lane of ten notes in which the way on is the old one, nine times.

A policy that has learned from lanes takes next, finds a word, and answers wrongly; it would have to
err nine times in a row to see a reward.
"""

from __future__ import annotations

import numpy as np

from envs.shell.families.lane import walk
from envs.shell.world import World

WORDINGS = (
    "The lane starts at {start}, old leads on and next misleads. Answer with the last word.",
    "From {start} on old entries lead to a file with a word, next ones astray. Answer it.",
)
NOTES = 10


def generate(rng: np.random.Generator) -> World:
    return walk(rng, notes=NOTES, on="old", astray="next", wordings=WORDINGS)
