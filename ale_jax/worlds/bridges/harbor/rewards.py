"""What a task pays for the rewards of its phases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ale_jax.sandbox.verify.verifier import REWARD
from ale_jax.worlds.api import Rewards

ByName = Mapping[str, float]


def falls_short(rewards: ByName, min_reward: ByName) -> bool:
    """Tells whether a phase's rewards end its task. A reward that is missing is below any bound."""
    return any(rewards.get(name, -math.inf) < least for name, least in min_reward.items())


def total(phases: Sequence[ByName], final: bool) -> ByName:
    """Returns the rewards of a task. phases: those of the phases that were judged, at least one;
    their means count, where a name that is missing is 0, or, `final`, the last one's alone."""
    if final:
        return phases[-1]
    names = dict.fromkeys(name for rewards in phases for name in rewards)
    return {name: math.fsum(each.get(name, 0.0) for each in phases) / len(phases) for name in names}


def paid(rewards: ByName) -> Rewards:
    """Returns what an episode earns: the reward of that name, or the only one, and otherwise all by
    their names, which the weights of the config add up."""
    if REWARD in rewards:
        return rewards[REWARD]
    return next(iter(rewards.values())) if len(rewards) == 1 else rewards
