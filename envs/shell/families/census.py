"""Census (held out): a log entry names a word and a file; the count must be written to a file."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.families.count import counted_log
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "The entry FAILED in {log} names a word and a file: write their count to {result}.",
    "Count the word of the FAILED entry of {log} in its file. Write the number to {result}.",
)


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    log, result = names.path("log"), names.path("txt")
    word, path = names.word(), names.path("log")
    number, content = counted_log(rng, names, word)
    entries = [f"passed {names.word()} {names.path('log')}" for _ in range(rng.integers(4, 8))]
    files = {
        log: lines(*shuffled(rng, [*entries, f"FAILED {word} {path}"])),
        path: content,
        # Creates the directory of the result.
        names.path("txt"): lines(names.number()),
    }
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(log=log, result=result),
        files=files,
        goal=Goal(files=files | {result: lines(str(number))}),
        oracle=(
            bash(f"grep FAILED {log}"),
            bash(f"grep -c {word} {path}"),
            bash(f"echo {number} > {result}"),
            finish(),
        ),
    )
