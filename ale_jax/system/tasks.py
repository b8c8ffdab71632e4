"""Which task has which position in a run, and the evaluations: pure functions of seed and position.

An evaluation plays each task of a fixed, unseen list once and counts successes per family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ale_jax.monitor.evaluations import Evaluation, FamilyResult
from ale_jax.records import EpisodeKey, Task, Trajectory
from ale_jax.system.config import EvalConfig, WorldsConfig
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


def evaluation(name: str, count: int, families: Sequence[str]) -> list[EpisodeKey]:
    """One attempt at each of `count` unseen tasks, the same for every run and every evaluation."""
    tasks = _unseen(0, count, families)
    return [EpisodeKey(f"eval/{name}", i, 0, task) for i, task in enumerate(tasks)]


def _unseen(offset: int, count: int, families: Sequence[str]) -> list[Task]:
    first = SPLITS["eval"].start + offset
    return [Task(families[i % len(families)], first + i, "eval") for i in range(count)]


def evaluation_keys(name: str, config: EvalConfig, worlds: WorldsConfig) -> list[EpisodeKey]:
    """Unseen tasks of the trained families, then of the held-out ones."""
    return [
        *evaluation(name, config.tasks, worlds.train_families),
        *evaluation(f"{name}/held_out", config.held_out_tasks, worlds.held_out_families),
    ]


def require_judged(evaluation: Evaluation, episodes: int) -> None:
    """RuntimeError if less than half of the episodes could be judged: a rate over those that were
    quicker than what broke is none of the policy."""
    if 2 * evaluation.judged < episodes:
        raise RuntimeError(
            f"of {episodes} episodes of evaluation {evaluation.name} only {evaluation.judged} "
            "could be judged: events.jsonl says how the others ended; the same command goes on"
        )


def tally(
    name: str,
    step: int,
    seconds: float,
    trajectories: Sequence[Trajectory],
    worlds: WorldsConfig,
) -> Evaluation:
    """Successes per family. An episode that the system could not finish, retries included, is no
    judgement of the policy and is left out of the count."""
    tasks, successes = Counter(), Counter()
    for trajectory in trajectories:
        episode = trajectory.episode
        if episode.reward is not None:
            tasks[episode.key.task.family] += 1
            successes[episode.key.task.family] += episode.reward > 0
    families = {
        family: FamilyResult(successes[family], tasks[family], family in worlds.held_out_families)
        for family in (*worlds.train_families, *worlds.held_out_families)
        if tasks[family]
    }
    return Evaluation(name, step, seconds, families)
