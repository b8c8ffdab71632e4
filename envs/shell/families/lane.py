"""Lane: notes in folders, each of which names the next one; the last one holds a code."""

from __future__ import annotations

import itertools

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick

WORDINGS = (
    "Start at {start} and follow the way. Answer with the code at its end.",
    "Walk from {start} to the end of the way. Which code is there?",
)
TURNS = ("left", "right", "ahead")


def generate(rng: np.random.Generator) -> ShellTask:
    """A note's path has two words and the code six digits, so that a guess is hardly ever right."""
    turns = [pick(rng, TURNS) for _ in range(rng.integers(1, 6))]
    names = Names(rng)
    notes = [names.path("txt", directory=names.word()) for _ in range(len(turns) + 1)]
    code = names.code()
    files = {notes[-1]: lines(f"code: {code}")}
    for turn, (here, there) in zip(turns, itertools.pairwise(notes)):
        files[here] = lines(f"{turn}: {there}")
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(start=notes[0]),
        files=files,
        goal=Goal(files=files, answer=code),
        oracle=(*[bash(f"cat {note}") for note in notes], finish(code)),
    )
