"""Lane: notes in folders, each naming the one that follows, the last one holding a code."""

from __future__ import annotations

import itertools

import numpy as np

from ale_jax.agent.tools import bash, finish
from envs.shell.world import Goal, Names, World, lines, pick, shuffled

WORDINGS = (
    "Start at {start} and follow the way. Answer with the code at its end.",
    "Walk from {start} to the end of the way. Which code is there?",
)
TURNS = ("left", "right", "ahead")


def generate(rng: np.random.Generator) -> World:
    turns = [pick(rng, TURNS) for _ in range(rng.integers(1, 6))]
    return walk(rng, turns, astray=0, wordings=WORDINGS)


def walk(
    rng: np.random.Generator, turns: list[str], astray: int, wordings: tuple[str, ...]
) -> World:
    """A chain of notes: each but the last says where each of its turns leads. The one in `turns` is
    the way on, `astray` others end in another code.

    A note's name is two words and a code six digits: whoever guesses is hardly ever right.
    """
    names = Names(rng)
    notes = [_path(names) for _ in range(len(turns) + 1)]
    code = _code(names)
    files = {notes[-1]: lines(f"code: {code}")}
    for turn, (note, after) in zip(turns, itertools.pairwise(notes)):
        leads = {turn: after}
        for other in shuffled(rng, [t for t in TURNS if t != turn])[:astray]:
            leads[other] = _path(names)
            files[leads[other]] = lines(f"code: {_code(names)}")
        files[note] = lines(*shuffled(rng, [f"{t}: {path}" for t, path in leads.items()]))
    return World(
        instruction=pick(rng, wordings).format(start=notes[0]),
        files=files,
        goal=Goal(files=files, answer=code),
        oracle=(*[bash(f"cat {note}") for note in notes], finish(code)),
    )


def _path(names: Names) -> str:
    return names.path("txt", directory=names.word())


def _code(names: Names) -> str:
    return names.number() + names.number()
