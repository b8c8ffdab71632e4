"""Sort: the one file that holds a word must be moved to another directory."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "Move the file in {source} that holds {word} to {target}.",
    "One file in {source} holds {word}. Move it to {target}.",
    "Find {word} in {source} and move its file to {target}.",
)


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    source, target, word = names.words(3)
    name = f"{names.word()}.txt"
    found, moved = f"{source}/{name}", f"{target}/{name}"
    files = {found: lines(*shuffled(rng, [word, *names.words(2)]))}
    files |= {names.path("txt", source): lines(*names.words(3)) for _ in range(3)}
    files |= {names.path("txt", target): lines(*names.words(3)) for _ in range(2)}
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(source=source, word=word, target=target),
        files=files,
        goal=Goal(files=files | {found: None, moved: files[found]}),
        oracle=(
            bash(f"grep -l {word} {source}/*"),
            bash(f"mv {found} {target}/"),
            bash(f"ls {target}"),
            finish(),
        ),
    )
