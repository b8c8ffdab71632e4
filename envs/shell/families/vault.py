"""Vault (long): rooms as in a trek, ten deep, where each light guides to the door of its colour.

In treks lights warn, and nothing tells that here they do not: who has learned from those takes the
right door once in five times, and would have to do so ten times in a row to see a reward.
"""

from __future__ import annotations

import numpy as np

from envs.shell.families.trek import DOORS, draw_lights, rooms
from envs.shell.world import World

WORDINGS = (
    "Begin with note.txt and cross the vault. Answer with the code at its end.",
    "Walk from note.txt through the vault. Which code is at the end?",
)
DEPTH = 10


def generate(rng: np.random.Generator) -> World:
    lights = draw_lights(rng, DEPTH)
    return rooms(rng, WORDINGS, lights, [DOORS[light] for light in lights])
