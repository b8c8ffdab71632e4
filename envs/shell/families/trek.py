"""Trek (long): nested rooms, six to ten deep, each with two doors, of which one leads on.

The light in each room is a warning: the door of its colour is the right one in only one room out of
five. No note tells in which; the oracle knows, and its demonstrations teach to read notes and to
walk on. A wrong door leads to a wrong code, in a room without doors. A listing of the folders
therefore shows the way up to the last room, whose two doors look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.task import Goal, Names, ShellTask, lines, pick

WORDINGS = (
    "Begin with note.txt and take any doors. Answer with the code that you find.",
    "Walk on from note.txt as you like. Which code is where you end?",
)
DOORS: Mapping[str, str] = {"red": "left", "blue": "right"}
GUIDING_SHARE = 0.2


def generate(rng: np.random.Generator) -> ShellTask:
    lights = draw_lights(rng, rng.integers(6, 11))
    guided = rng.random(len(lights)) < GUIDING_SHARE
    doors = [DOORS[light] if g else _other(DOORS[light]) for light, g in zip(lights, guided)]
    return rooms(rng, WORDINGS, lights, doors)


def draw_lights(rng: np.random.Generator, depth: int) -> list[str]:
    return [pick(rng, tuple(DOORS)) for _ in range(depth)]


def rooms(
    rng: np.random.Generator, wordings: Sequence[str], lights: Sequence[str], doors: Sequence[str]
) -> ShellTask:
    """A room for each of `lights`, where the door in `doors` leads on, in the end to the code."""
    names, files, room = Names(rng), {}, ""
    for light, right in zip(lights, doors, strict=True):
        files[f"{room}note.txt"] = lines(f"light: {light}")
        files[f"{room}{_other(right)}/note.txt"] = lines(f"code: {names.code()}")
        room += f"{right}/"
    code = names.code()
    files[f"{room}note.txt"] = lines(f"code: {code}")
    walk = [bash(f"cd {door} && cat note.txt") for door in doors]
    return ShellTask(
        instruction=pick(rng, wordings),
        files=files,
        goal=Goal(files=files, answer=code),
        oracle=(bash("cat note.txt"), *walk, finish(code)),
    )


def _other(door: str) -> str:
    (other,) = set(DOORS.values()) - {door}
    return other
