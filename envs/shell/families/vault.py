"""Vault (long): five doors, at each of which two codes stand, and the one to take is the old one.

Every command is of a kind that other families have (a note is read, a code is looked up), but
wherever those show a choice between next and old, old misleads. A policy that has learned from them
takes next at the first door, and would have to err five times in a row to see a reward.
"""

from __future__ import annotations

import itertools

import numpy as np

from ale_jax.agent.tools import bash, finish
from envs.shell.world import Goal, Names, World, lines, pick, shuffled

WORDINGS = (
    "Start at {start}, follow old, never next: {register} has the codes. Answer the last word.",
    "From {start} on take old codes; {register} says where they lead. What word is at the end?",
)
DOORS = 5


def generate(rng: np.random.Generator) -> World:
    names = Names(rng)
    register = names.path("csv")
    notes = [names.path("txt") for _ in range(DOORS + 1)]
    word = names.word()
    files, entries, chain = {}, [], []
    for note, behind in itertools.pairwise(notes):
        code, wrong, decoy = names.number(), names.number(), names.path("txt")
        files[note] = lines(*shuffled(rng, [f"old: {code}", f"next: {wrong}"]))
        files[decoy] = lines(f"word: {names.word()}")
        entries += [f"{code} {behind}", f"{wrong} {decoy}"]
        chain += [bash(f"cat {note}"), bash(f"grep {code} {register}")]
    files |= {notes[-1]: lines(f"word: {word}"), register: lines(*shuffled(rng, entries))}
    return World(
        instruction=pick(rng, WORDINGS).format(start=notes[0], register=register),
        files=files,
        goal=Goal(files=files, answer=word),
        oracle=(*chain, bash(f"cat {notes[-1]}"), finish(word)),
    )
