"""Trail: every file points to the next one; the last one holds a word. Old pointers mislead."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "Start at {start} and follow next. Answer with the word of the last file.",
    "Follow next from {start} to the end; the answer is the word found there.",
    "What word ends the trail that starts at {start}? Follow next.",
)


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    paths = [names.path("txt") for _ in range(rng.integers(3, 6))]
    word = names.word()
    files = {}
    for path, pointer in zip(paths, [f"next: {after}" for after in paths[1:]] + [f"word: {word}"]):
        decoy = names.path("txt")
        files[path] = lines(*shuffled(rng, [pointer, f"old: {decoy}"]))
        files[decoy] = lines(f"word: {names.word()}")
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(start=paths[0]),
        files=files,
        goal=Goal(files=files, answer=word),
        oracle=(*[bash(f"cat {path}") for path in paths], finish(word)),
    )
