"""Metrics of a step's episodes by the families of their tasks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ale_jax.records import Trajectory
from ale_jax.status import STATUS_RULES


def family_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns means over the episodes of each family.

    success, reward, turns and time/episode_s/FAMILY. reward/FAMILY/NAME: what a world calls by a
    name, without weights, of the episodes that earned any. metric/FAMILY/NAME: what else a world
    tells by name. response_tokens/FAMILY: that the policy
    wrote. limited/FAMILY: the share of episodes that a limit ended.
    """
    families: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        families[trajectory.episode.key.task.family].append(trajectory)
    return {
        f"{name}/{family}": value
        for family, its in families.items()
        for name, value in _means(its).items()
    } | {
        f"{what}/{family}/{name}": value
        for family, its in families.items()
        for what, told in (
            ("reward", (each.episode.rewards for each in its)),
            ("metric", (each.episode.metrics for each in its)),
        )
        for name, value in _named(told)
    }


def _means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    episodes = [each.episode for each in trajectories]
    values = {
        "success": [each.is_solved for each in episodes],
        "reward": [each.reward for each in episodes],
        "turns": [each.turns for each in episodes],
        "time/episode_s": [each.seconds for each in episodes],
        "response_tokens": [each.num_policy_tokens for each in trajectories],
        "limited": [STATUS_RULES[each.status].truncated for each in episodes],
    }
    return {name: float(np.mean(each)) for name, each in values.items()}


def _named(told: Iterable[tuple[tuple[str, float], ...]]) -> Iterator[tuple[str, float]]:
    """Yields the mean of each name over the episodes that tell it."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in itertools.chain.from_iterable(told):
        found[name].append(value)
    for name in sorted(found):
        yield name, float(np.mean(found[name]))
