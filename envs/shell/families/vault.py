"""Vault (long): ten notes, nine of them with a choice, and the way on is the old one.

Notes are read as in `trail`, where old misleads. A policy that has learned from that takes next,
finds a word, and answers wrongly; it would have to err nine times in a row to see a reward.
"""

from __future__ import annotations

import itertools

import numpy as np

from ale_jax.agent.tools import bash, finish
from envs.shell.world import Goal, Names, World, lines, pick, shuffled

WORDINGS = (
    "Start at {start} and follow old, never next. Answer with the word of the last file.",
    "Follow old from {start} to the end, as next misleads; the answer is the word found there.",
)
NOTES = 10


def generate(rng: np.random.Generator) -> World:
    names = Names(rng)
    paths = [names.path("txt") for _ in range(NOTES)]
    word = names.word()
    files = {paths[-1]: lines(f"word: {word}")}
    for path, after in itertools.pairwise(paths):
        decoy = names.path("txt")
        files[path] = lines(*shuffled(rng, [f"old: {after}", f"next: {decoy}"]))
        files[decoy] = lines(f"word: {names.word()}")
    return World(
        instruction=pick(rng, WORDINGS).format(start=paths[0]),
        files=files,
        goal=Goal(files=files, answer=word),
        oracle=(*[bash(f"cat {path}") for path in paths], finish(word)),
    )
