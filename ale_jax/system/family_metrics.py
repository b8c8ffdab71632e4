"""Metrics of a step's episodes by the families of their tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ale_jax.records import Trajectory
from ale_jax.status import STATUS_RULES


def family_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns means over the episodes of each family.

    success, reward, turns and time/episode_s/FAMILY. reward/FAMILY/NAME: what a world calls by a
    name, without weights, of the episodes that earned any. response_tokens/FAMILY: that the policy
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
        f"reward/{family}/{name}": value
        for family, its in families.items()
        for name, value in _named_rewards(its)
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


def _named_rewards(trajectories: Sequence[Trajectory]) -> Iterator[tuple[str, float]]:
    earned: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.episode.rewards:
            earned[name].append(value)
    for name in sorted(earned):
        yield name, float(np.mean(earned[name]))
