"""Vault (long): a lane of eleven notes, at ten of which there are three ways, and left is right.

In lanes there was nothing to choose. A policy that has learned from them takes any of the ways; the
wrong ones end in a code, with which it answers. It would have to be lucky ten times in a row to see
a reward, once in 59,049 episodes if it copied every name without a fault.
"""

from __future__ import annotations

import numpy as np

from envs.shell.families.lane import TURNS, walk
from envs.shell.world import World

WORDINGS = (
    "Start at {start} and turn left at every crossing. Answer with the code at the end.",
    "Walk from {start} to the end, always to the left. Which code is there?",
)
CROSSINGS = 10


def generate(rng: np.random.Generator) -> World:
    return walk(rng, ["left"] * CROSSINGS, astray=len(TURNS) - 1, wordings=WORDINGS)
