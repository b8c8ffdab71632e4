"""Trek (long): seven to eleven notes on the way, with three ways at each, and all of them lead on.

It takes as many steps as a vault, and the oracle draws its ways by lot, whatever the lights: from
treks one learns to read crossings, and patience, and to favour none of the ways.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.shell.families.lane import TURNS, new_code, walk
from envs.shell.world import Names, World, lines, pick, shuffled

WORDINGS = (
    "Start at {start} and take any way. Answer with the code at the end.",
    "Walk from {start} to the end, whichever way. Which code is there?",
)
# What each means in a vault.
LIGHTS: Mapping[str, str] = {"red": "left", "amber": "ahead", "blue": "right"}


def generate(rng: np.random.Generator) -> World:
    names = Names(rng)
    (start, *_), code = three_notes(names), new_code(names)
    # Whichever note of a stage was taken, it names all of the next.
    stages = [three_notes(names) for _ in range(rng.integers(6, 11))]
    files = {}
    for here, there in zip([[start], *stages], stages):
        note = crossing(rng, pick(rng, tuple(LIGHTS)), dict(zip(TURNS, there)))
        files |= dict.fromkeys(here, note)
    files |= dict.fromkeys(stages[-1], lines(f"code: {code}"))
    taken = [start, *(pick(rng, stage) for stage in stages)]
    return walk(pick(rng, WORDINGS), taken, files, code)


def three_notes(names: Names) -> list[str]:
    """Paths of a note for each turn, alike but for the directory: a small policy that copies two
    words does not mix those of two ways, and to guess a note it would have to guess both."""
    note = names.path("txt")
    return [f"{names.word()}/{note}" for _ in TURNS]


def crossing(rng: np.random.Generator, light: str, ways: Mapping[str, str]) -> bytes:
    """A note with a light and a way for each turn, in any order."""
    return lines(f"light: {light}", *shuffled(rng, [f"{t}: {note}" for t, note in ways.items()]))
