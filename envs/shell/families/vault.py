"""Vault (long): a chain of eleven notes, at ten of which a light says which of three ways is right.

Nothing tells what the lights mean, and in treks they mean nothing: who has learned from those takes
any of the ways, and the wrong ones end in a code, with which it answers. It would have to be lucky
ten times in a row to see a reward, once in 59,049 episodes if it copied every name without a fault.
"""

from __future__ import annotations

import numpy as np

from envs.shell.families.lane import TURNS, new_code, walk
from envs.shell.families.trek import LIGHTS, crossing, three_notes
from envs.shell.world import Names, World, lines, pick

WORDINGS = (
    "Start at {start} and cross the vault. Answer with the code at the end.",
    "Walk from {start} through the vault. Which code is at the end?",
)
CROSSINGS = 10


def generate(rng: np.random.Generator) -> World:
    names = Names(rng)
    (start, *_), code = three_notes(names), new_code(names)
    notes, files = [start], {}
    for _ in range(CROSSINGS):
        light = pick(rng, tuple(LIGHTS))
        ways = dict(zip(TURNS, three_notes(names)))
        files[notes[-1]] = crossing(rng, light, ways)
        files |= {note: lines(f"code: {new_code(names)}") for note in ways.values()}
        notes.append(ways[LIGHTS[light]])
    files[notes[-1]] = lines(f"code: {code}")
    return walk(pick(rng, WORDINGS), notes, files, code)
