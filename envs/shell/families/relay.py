"""Relay (held out): a trail whose last file asks for a change in a .conf file."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.families.config import settings
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "Follow next from {start}, then make the change that the last file asks for.",
    "Start at {start}, follow next, and do what the last file says.",
)


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    conf = names.path("conf")
    values = {key: names.value() for key in names.words(3)}
    key = pick(rng, list(values))
    wanted = names.value()
    paths = [names.path("txt") for _ in range(rng.integers(2, 4))]
    pointers = [f"next: {after}" for after in paths[1:]] + [f"set {key} = {wanted} in {conf}"]
    files = {conf: settings(values)}
    for path, pointer in zip(paths, pointers):
        decoy = names.path("txt")
        files[path] = lines(*shuffled(rng, [pointer, f"old: {decoy}"]))
        files[decoy] = lines(f"set {key} = {names.value()} in {conf}")
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(start=paths[0]),
        files=files,
        goal=Goal(files=files | {conf: settings(values | {key: wanted})}),
        oracle=(
            *[bash(f"cat {path}") for path in (*paths, conf)],
            bash(f"sed -i 's/{values[key]}/{wanted}/' {conf}"),
            finish(),
        ),
    )
