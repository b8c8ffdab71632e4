"""Lane: a trail whose files lie in folders, a short way to what the vault is a long one to."""

from __future__ import annotations

import itertools

import numpy as np

from ale_jax.agent.tools import bash, finish
from envs.shell.world import Goal, Names, World, lines, pick, shuffled

WORDINGS = (
    "The lane starts at {start}, next leads on and old misleads. Answer with the last word.",
    "From {start} on next entries lead to a file with a word, old ones astray. Answer it.",
)


def generate(rng: np.random.Generator) -> World:
    return walk(rng, notes=int(rng.integers(3, 5)), on="next", astray="old", wordings=WORDINGS)


def walk(
    rng: np.random.Generator, notes: int, on: str, astray: str, wordings: tuple[str, ...]
) -> World:
    """A chain of notes in folders of their own. In each the entry `on` names the note that follows,
    and `astray` one that ends in another word.

    A file's name is two words: whoever guesses one is right in one of ten thousand.
    """
    names = Names(rng)
    paths, word = [_path(names) for _ in range(notes)], names.word()
    files = {paths[-1]: lines(f"word: {word}")}
    for path, after in itertools.pairwise(paths):
        decoy = _path(names)
        files[path] = lines(*shuffled(rng, [f"{on}: {after}", f"{astray}: {decoy}"]))
        files[decoy] = lines(f"word: {names.word()}")
    return World(
        instruction=pick(rng, wordings).format(start=paths[0]),
        files=files,
        goal=Goal(files=files, answer=word),
        oracle=(*[bash(f"cat {path}") for path in paths], finish(word)),
    )


def _path(names: Names) -> str:
    return names.path("txt", directory=names.word())
