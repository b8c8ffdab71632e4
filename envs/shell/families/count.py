"""Count: a note names a word, a log and a file; the number of the log's lines with the word must be
written to the file."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "Count the lines as {note} says.",
    "Do the count that {note} asks for.",
    "Read {note} and write the number of lines that it wants.",
)


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    note, log, result = names.path("txt"), names.path("log"), names.path("txt")
    word = names.word()
    number, content = counted_log(rng, names, word)
    files = {
        note: lines(*shuffled(rng, [f"word: {word}", f"log: {log}", f"write: {result}"])),
        log: content,
        # Creates the directory of the result.
        names.path("txt"): lines(names.number()),
    }
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(note=note),
        files=files,
        goal=Goal(files=files | {result: lines(str(number))}),
        oracle=(
            bash(f"cat {note}"),
            bash(f"grep -c {word} {log}"),
            bash(f"echo {number} > {result}"),
            finish(),
        ),
    )


def counted_log(rng: np.random.Generator, names: Names, word: str) -> tuple[int, bytes]:
    """A number from 10 to 99, and a log in which `word` occurs that often."""
    number = int(rng.integers(10, 100))
    others = names.words(3)
    rest = [pick(rng, others) for _ in range(rng.integers(10, 100))]
    entries = shuffled(rng, [word] * number + rest)
    return number, lines(*[f"{rng.integers(1000, 10000)} {entry}" for entry in entries])
