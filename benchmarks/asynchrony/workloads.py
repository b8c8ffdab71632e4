"""How long the turns of an episode take, as the published comparisons describe them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.records import EpisodeKey
from ale_jax.system.simulation.world import Course

UPDATE_SHARE = 0.3  # of a synchronous rollout
TURNS = 5
TAIL = math.log(20) / statistics.NormalDist().inv_cdf(0.99)
SLOW_SHARE, SLOW_TIMES, HUNG_SHARE, DEADLINE_S = 0.05, 5.0, 0.01, 400.0
DEADLINES = DeadlinesConfig(turn_seconds=DEADLINE_S, episode_seconds=DEADLINE_S)

Draw = Callable[[random.Random], tuple[float, ...]]  # the seconds of each turn of an episode


def agentic(chance: random.Random) -> tuple[float, ...]:
    """Draws five turns of max(0, N(10, 10)) s."""
    return tuple(max(0.0, chance.gauss(10.0, 10.0)) for _ in range(TURNS))


def tail(chance: random.Random) -> tuple[float, ...]:
    """Draws one log-normal turn, 10 s in the median, whose 99th percentile is 20 times as long."""
    return (10.0 * math.exp(chance.gauss(0.0, TAIL)),)


def faulty(chance: random.Random) -> tuple[float, ...]:
    """Draws agentic turns, 5 % of which are in a sandbox that is five times slower, and 1 % in one
    that hangs."""
    turns, fault = agentic(chance), chance.random()
    if fault < HUNG_SHARE:
        return (math.inf,) * TURNS
    slower = SLOW_TIMES if fault < HUNG_SHARE + SLOW_SHARE else 1.0
    return tuple(slower * turn for turn in turns)


def course_of(draw: Draw) -> Callable[[EpisodeKey, random.Random], Course]:
    """Returns the simulated episodes of a workload."""
    return lambda key, chance: Course(sum(draw(chance)))
