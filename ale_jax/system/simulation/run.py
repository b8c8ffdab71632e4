"""A training run in simulated time: what a config does with the seconds that episodes take."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable

from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.data.replay import GroupSize, ReplayBuffer
from ale_jax.data.staleness import Drop, StalenessGate, age
from ale_jax.monitor.times import AttemptTimes, StepTimes, Times
from ale_jax.records import TRAIN, EpisodeKey, RolloutRequest, Task
from ale_jax.system.rollouts.breaker import Outside
from ale_jax.system.rollouts.loop import RolloutLoop, Training
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.workers import RolloutWorkers
from ale_jax.system.simulation.observed import Outcome, mean_error, observed, timed_steps
from ale_jax.system.simulation.sides import LentDevices, Sides
from ale_jax.system.simulation.world import (
    ALONE,
    Clock,
    Course,
    Crowding,
    SimulatedConversations,
    SimulatedPool,
)

TICK_S = 1e-9  # what rounding leaves of a time that is over
WAIT_S = 1.0  # simulated seconds after which the loop looks whether a pause is over
LOOKS = 1000  # within an update, at most
PRECISION = 0.02  # of the seconds of a step
Draw = Callable[[EpisodeKey, random.Random], Course]
DAY_S = 86400.0
NEVER = DeadlinesConfig(turn_seconds=DAY_S, episode_seconds=DAY_S)


@dataclasses.dataclass(frozen=True)
class Setup:
    """A run's schedule. The fields are those of `rl` and `rollout` in a config. places: episodes at
    once. update_seconds: from a step's groups to the publication of its weights, if no episode is
    in progress. pause_seconds: from then until the learner looks for the next groups. lent: to
    updates; None if nothing ever is."""

    groups_per_step: int
    group_size: int
    places: int
    update_seconds: float
    alpha: float = 0.0
    stragglers: str = "wait"
    redundant_groups: int = 0
    redundant_members: int = 0
    retries: int = 1
    deadlines: DeadlinesConfig = NEVER
    pause_seconds: float = 0.0
    crowding: Crowding = ALONE
    reward_workers: int = 0
    lent: LentDevices | None = None


def simulate(
    setup: Setup, course: Draw, steps: int, seed: int, begin: int = 0, most: int = 0
) -> Outcome:
    """Returns what `steps` steps come to, after `begin` others that do not count. Twice as many are
    made until their speed is known to PRECISION, but no more than `most`."""
    run = _SimulatedRun(setup, course, seed)
    while True:
        counted = timed_steps(run.times(begin + steps), beginning=0.0)[begin:]
        is_known = mean_error([step.seconds for step in counted]) <= PRECISION
        if is_known or 2 * steps > most:
            break
        steps *= 2
    run.workers.close()  # only then are there times of attempts in progress
    return observed(run.times(begin + steps), counted, setup.places)


def simulated(setup: Setup, course: Draw, steps: int, seed: int) -> Times:
    """Runs the rollout loop, the gate and the buffer of a real run until `steps` steps are made,
    and returns its times.

    course: draws how an attempt goes.
    """
    run = _SimulatedRun(setup, course, seed)
    run.times(steps)
    run.workers.close()
    return run.times(steps)


class _SimulatedRun:
    def __init__(self, setup: Setup, course: Draw, seed: int):
        self._setup, self._clock, self._sides = setup, Clock(), Sides(setup.lent)
        chance = random.Random(seed)
        redundant = setup.redundant_groups
        self._gate = gate = StalenessGate(setup.alpha, setup.groups_per_step, redundant=redundant)
        self._size = GroupSize(setup.group_size, setup.redundant_members)
        self._buffer = ReplayBuffer(gate, self._size, waits=setup.stragglers == "wait")
        self._pool = SimulatedPool(
            setup.places,
            lambda key: course(key, chance),
            self._clock,
            setup.crowding,
            setup.reward_workers,
        )
        conversations = SimulatedConversations(self._clock, lambda: gate.version)
        replicas = PolicyReplicas([PolicyReplica(conversations, "", lambda: 0)])
        outside = Outside(self._clock, chance)
        self.workers = RolloutWorkers(
            self._pool, replicas, setup.deadlines, setup.retries, _ignore, outside
        )
        self.attempts: list[AttemptTimes] = []
        self.workers.note_times(self.attempts.append)
        self._loop = RolloutLoop(self.workers, self._clock)
        groups, sampling = itertools.count(), Sampling()
        self._loop.train(
            Training(
                gate,
                lambda domain: next(groups),
                self._assign,
                lambda requests: [],
                self._buffer.add,
                self._buffer.drop_overdue,
                sampling,
            )
        )
        self._stale = 0  # groups that were dropped
        self._made: list[StepTimes] = []

    def times(self, steps: int) -> Times:
        """Goes on until `steps` steps are made, and returns all times."""
        while len(self._made) < steps:
            self._made.append(self._step())
        return Times(tuple(self.attempts), tuple(self._made))

    def _assign(self, group: int) -> list[RolloutRequest]:
        task = Task("simulated", group, TRAIN)
        members = range(self._size.played)
        return [RolloutRequest(EpisodeKey(TRAIN, group, member, task)) for member in members]

    def _step(self) -> StepTimes:
        """As `train_loop` makes it: takes the groups, lets the update take its time, publishes."""
        begun = self._clock.now
        while not (groups := self._buffer.take()):
            self._loop.advance(WAIT_S)
        version, taken = self._gate.version, self._clock.now
        is_lent = self._update()
        self._gate.publish(version + 1)
        published = self._clock.now
        while (left := published + self._setup.pause_seconds - self._clock.now) > TICK_S:
            self._loop.advance(min(left, WAIT_S))
        stale, before = self._gate.counts()[f"dropped_{Drop.STALE}"], self._stale
        self._stale = stale
        ages = tuple(age(version, group.start_version) for group in groups)
        return StepTimes(
            *(version + 1, taken - begun, taken, published, 0.0, ages),
            stale=stale - before,
            lent=published - taken if is_lent else 0.0,
        )

    def _update(self) -> bool:
        """Lets the update take its time, which is longer the more episodes are in progress. Returns
        whether it was lent devices."""
        is_lent = self._sides.begin_update(self._pool.playing)
        self._pool.in_update, self._pool.crowd = True, self._sides.crowd
        left = self._setup.update_seconds / self._sides.speed
        wait = max(WAIT_S, left / LOOKS)
        while left > TICK_S:
            slower, now = self._setup.crowding.of_update(self._pool.playing), self._clock.now
            self._loop.advance(min(left * slower, wait))
            left -= (self._clock.now - now) / slower
        self._pool.in_update, self._pool.crowd = False, 1.0
        return is_lent


def _ignore(kind: str, detail: str, **fields: object) -> None:
    """Simulated faults are counted, not recorded."""
