"""Rename: files with one extension get another one, by a rule in a file. An old rule misleads."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "Rename the files in {directory} by the rule in {rule}.",
    "{rule} has a rule: apply it to the names in {directory}.",
    "Give the files in {directory} the endings that {rule} asks for.",
)
EXTENSIONS = ("bak", "cfg", "csv", "dat", "htm", "ini", "log", "md", "old", "tmp", "xml", "yml")


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    directory, rule = names.word(), names.path("txt")
    source, target, other, unused = shuffled(rng, EXTENSIONS)[:4]
    # In the order in which `ls` lists them.
    stems = sorted(names.words(rng.integers(2, 4)))
    renamed = {f"{directory}/{s}.{source}": f"{directory}/{s}.{target}" for s in stems}
    kept = [names.path(other, directory) for _ in range(rng.integers(1, 3))]
    content = {path: lines(names.word()) for path in (*renamed, *kept)}
    rules = [f"now: {source} -> {target}", f"old: {other} -> {unused}"]
    files = content | {rule: lines(*shuffled(rng, rules))}
    moved = {new: content[path] for path, new in renamed.items()}
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(directory=directory, rule=rule),
        files=files,
        goal=Goal(files=files | dict.fromkeys(renamed) | moved),
        oracle=(
            bash(f"cat {rule}"),
            bash(f"ls {directory}"),
            *[bash(f"mv {path} {new}") for path, new in renamed.items()],
            finish(),
        ),
    )
