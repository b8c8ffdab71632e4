"""Lookup: person to team, team to floor, floor to room, over three files."""

from __future__ import annotations

import itertools

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick, shuffled

WORDINGS = (
    "Answer with the room of {person}: team in {teams}, floor in {floors}, room in {rooms}.",
    "{teams} has teams, {floors} their floors, {rooms} the rooms. Which room has {person}?",
)
ROWS = 5


def generate(rng: np.random.Generator) -> ShellTask:
    names = Names(rng)
    paths = [names.path("csv") for _ in range(3)]
    columns = [*[names.words(ROWS) for _ in range(3)], [names.number() for _ in range(ROWS)]]
    chain = [column[0] for column in columns]
    files = {
        path: lines(*shuffled(rng, [f"{left}: {right}" for left, right in zip(*pair)]))
        for path, pair in zip(paths, itertools.pairwise(columns))
    }
    teams, floors, rooms = paths
    return ShellTask(
        instruction=pick(rng, WORDINGS).format(
            person=chain[0], teams=teams, floors=floors, rooms=rooms
        ),
        files=files,
        goal=Goal(files=files, answer=chain[-1]),
        oracle=(
            *[bash(f"grep {key} {path}") for key, path in zip(chain, paths)],
            finish(chain[-1]),
        ),
    )
