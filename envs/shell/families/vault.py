"""Vault (long): rooms as in a trek, ten deep, in which the door of the light's colour is right.

In treks the lights are warnings, and no note tells that they are not here. A policy that walks as
it has learned from treks takes the right door one time in five, and would have to do so ten times
in a row to get a reward. Who lists the folders first has only the last door to guess.
"""

from __future__ import annotations

import numpy as np

from ale_jax.envs.shell.families.trek import DOORS, draw_lights, rooms
from ale_jax.envs.shell.task import ShellTask

WORDINGS = (
    "Begin with note.txt and cross the vault. Answer with the code at its end.",
    "Walk from note.txt through the vault. Which code is at the end?",
)
DEPTH = 10


def generate(rng: np.random.Generator) -> ShellTask:
    lights = draw_lights(rng, DEPTH)
    return rooms(rng, WORDINGS, lights, [DOORS[light] for light in lights])
