"""Config: one or two values of a .conf file must be changed to those in another file."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "Change {conf} so that it holds what {spec} wants.",
    "{spec} says what must change in {conf}. Do it.",
    "Make {conf} agree with {spec}.",
)


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    conf, spec = names.path("conf"), names.path("txt")
    neighbour = names.path("conf")
    old = {key: names.value() for key in names.words(3)}
    changed = shuffled(rng, list(old))[: rng.integers(1, 3)]
    wanted = {key: names.value() for key in changed}
    files = {
        conf: settings(old),
        neighbour: settings({key: names.value() for key in old}),
        spec: lines(f"# {names.word()}") + settings(wanted),
    }
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(conf=conf, spec=spec),
        files=files,
        goal=Goal(files=files | {conf: settings(old | wanted)}),
        oracle=(
            bash(f"cat {conf}"),
            bash(f"cat {spec}"),
            *[bash(f"sed -i 's/{old[key]}/{wanted[key]}/' {conf}") for key in changed],
            finish(),
        ),
    )


def settings(values: dict[str, str]) -> bytes:
    """The content of a .conf file."""
    return lines(*[f"{key} = {value}" for key, value in values.items()])
