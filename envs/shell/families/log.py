"""Log: one entry FAILED; its code identifies an owner in another file."""

from __future__ import annotations

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "One entry of {log} is FAILED. Answer with the owner of its code, from {owners}.",
    "Who in {owners} has the code that FAILED in {log}?",
    "Find the code that FAILED in {log}. Answer with its owner in {owners}.",
)


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    log, owners = names.path("log"), names.path("txt")
    owner_of = {names.number(): names.word() for _ in range(rng.integers(5, 9))}
    failed = pick(rng, list(owner_of))
    entries = [
        f"{names.word()} {'FAILED' if code == failed else 'passed'} {code}" for code in owner_of
    ]
    owned = shuffled(rng, [f"{code} {owner}" for code, owner in owner_of.items()])
    files = {log: lines(*entries), owners: lines(*owned)}
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(log=log, owners=owners),
        files=files,
        goal=Goal(files=files, answer=owner_of[failed]),
        oracle=(
            bash(f"grep FAILED {log}"),
            bash(f"grep {failed} {owners}"),
            finish(owner_of[failed]),
        ),
    )
