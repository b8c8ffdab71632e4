"""Which task stands at which position of a run. Pure functions of seed and position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ale_jax.records import Slot, Task
from envs.splits import SPLITS

# The warm start's stopping rule looks at tasks of the evaluation split that no evaluation uses.
PROBE_OFFSET = 1 << 20


def train_task(number: int, families: Sequence[str], seed: int, distinct: int = 0) -> Task:
    """The how-manieth task of training. Families take turns; seeds are drawn.

    distinct: tasks per family, after which the same ones come again in the same order; 0: never.
    """
    if distinct:
        number %= distinct * len(families)
    train = SPLITS["train"]
    draw = np.random.default_rng([seed, number]).integers(train.start, train.stop)
    return Task(families[number % len(families)], int(draw), "train")


def demonstration_tasks(count: int, families: Sequence[str], seed: int) -> list[Task]:
    """The warm start's tasks: `count` of each family, from the training split."""
    train = SPLITS["train"]
    draws = np.random.default_rng([seed, 1 << 32]).integers(train.start, train.stop, count)
    return [Task(family, int(draw), "train") for draw in draws for family in families]


def probe_tasks(count: int, families: Sequence[str]) -> list[Task]:
    """Unseen tasks on which the warm start decides when to stop."""
    return _unseen(PROBE_OFFSET, count, families)


def evaluation(name: str, count: int, families: Sequence[str]) -> list[Slot]:
    """One attempt at each of `count` unseen tasks, the same for every run and every evaluation."""
    tasks = _unseen(0, count, families)
    return [Slot(f"eval/{name}", i, 0, task) for i, task in enumerate(tasks)]


def _unseen(offset: int, count: int, families: Sequence[str]) -> list[Task]:
    first = SPLITS["eval"].start + offset
    return [Task(families[i % len(families)], first + i, "eval") for i in range(count)]
