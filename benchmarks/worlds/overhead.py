"""What does it cost in a step that a world is held to its interface?"""

from __future__ import annotations

import timeit
from typing import NamedTuple

from ale_jax.config.worlds import Domain
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import EVAL, Item

REPEATS, STEPS = 30, 2000


class Cost(NamedTuple):
    """Of a step, in microseconds, the least of REPEATS: of the world alone, and as it is played."""

    bare_us: float
    played_us: float
    ratio: float


class Silent(World):
    """Answers at once, so that the interface is all that there is."""

    def reset(self, item, sandbox):
        return ""

    def step(self, reply):
        return Step("more")


def step_overhead() -> dict[str, Cost]:
    """Returns the cost by world."""
    family = open_families((Domain("countdown", ("countdown3",)),))["countdown3"]
    item = Item("countdown3", family.items.evaluation(0, 0), EVAL)
    (reply,) = family.world.oracle(item)
    worlds = {
        "silent": (Silent(), Item("silent", 0, EVAL), ""),
        "countdown": (family.open(), item, reply),
    }
    return {name: _cost(*each) for name, each in worlds.items()}


def _cost(world: World, item: Item, reply: str) -> Cost:
    played = CheckedWorld(world, item, None)
    played.reset()
    # In turn, so that both have the same share of a busy machine.
    times = [
        [
            timeit.timeit(lambda call=call: call(reply), number=STEPS)
            for call in (world.step, played.step)
        ]
        for _ in range(REPEATS)
    ]
    bare, checked = (1e6 * min(column) / STEPS for column in zip(*times, strict=True))
    return Cost(round(bare, 3), round(checked, 3), round(checked / bare, 3))
