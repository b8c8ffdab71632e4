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
from ale_jax.records import TRAIN, EpisodeKey, RolloutRequest, Task
from ale_jax.system.rollouts.breaker import Outside
from ale_jax.system.rollouts.loop import RolloutLoop, Training
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.workers import RolloutWorkers
from ale_jax.system.simulation.world import Clock, Course, SimulatedConversations, SimulatedPool

WAIT_S = 1.0  # simulated seconds after which the loop looks whether a pause is over
NEVER = DeadlinesConfig(turn_seconds=86400.0, episode_seconds=86400.0)


@dataclasses.dataclass(frozen=True)
class Setup:
    """A run's schedule. The fields are those of `rl` and `rollout` in a config. places: episodes at
    once. update_seconds: from a step's groups to the publication of its weights."""

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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a simulated run came to. seconds_per_step: mean. places_busy: share of the places' time
    in which they played. learner_busy: share of the time. mean_age: in versions, of the groups that
    were trained on. stale_share: dropped as too old, of those that were trained on or dropped.
    episodes: that were delivered."""

    seconds_per_step: float
    places_busy: float
    learner_busy: float
    mean_age: float
    stale_share: float
    episodes: int


def simulate(
    setup: Setup, course: Callable[[EpisodeKey, random.Random], Course], steps: int, seed: int
) -> Outcome:
    """Runs the rollout loop, the gate and the buffer of a real run until `steps` steps are made.

    course: draws how an attempt goes.
    """
    run = _Run(setup, course, seed)
    for _ in range(steps):
        run.step()
    return run.outcome()


class _Run:
    def __init__(
        self, setup: Setup, course: Callable[[EpisodeKey, random.Random], Course], seed: int
    ):
        self._setup, self._clock = setup, Clock()
        chance = random.Random(seed)
        redundant = setup.redundant_groups
        self._gate = gate = StalenessGate(setup.alpha, setup.groups_per_step, redundant=redundant)
        self._size = GroupSize(setup.group_size, setup.redundant_members)
        self._buffer = ReplayBuffer(gate, self._size, waits=setup.stragglers == "wait")
        self._pool = SimulatedPool(setup.places, lambda key: course(key, chance), self._clock)
        conversations = SimulatedConversations(self._clock, lambda: gate.version)
        replicas = PolicyReplicas([PolicyReplica(conversations, "", lambda: 0)])
        outside = Outside(self._clock, chance)
        workers = RolloutWorkers(
            self._pool, replicas, setup.deadlines, setup.retries, _ignore, outside
        )
        self._loop = RolloutLoop(workers, self._clock)
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
        self._ages: list[int] = []

    def _assign(self, group: int) -> list[RolloutRequest]:
        task = Task("simulated", group, TRAIN)
        members = range(self._size.played)
        return [RolloutRequest(EpisodeKey(TRAIN, group, member, task)) for member in members]

    def step(self) -> None:
        """As `train_loop` makes it: takes the groups, lets the update take its time, publishes."""
        while not (groups := self._buffer.take()):
            self._loop.advance(WAIT_S)
        version = self._gate.version
        self._ages += [age(version, group.start_version) for group in groups]
        published = self._clock.now + self._setup.update_seconds
        while self._clock.now < published:
            self._loop.advance(min(published - self._clock.now, WAIT_S))
        self._gate.publish(version + 1)

    def outcome(self) -> Outcome:
        seconds, steps, counts = self._clock.now, self._gate.version, self._gate.counts()
        stale = counts[f"dropped_{Drop.STALE}"]
        return Outcome(
            seconds_per_step=seconds / steps,
            places_busy=self._pool.busy_seconds / (seconds * self._setup.places),
            learner_busy=steps * self._setup.update_seconds / seconds,
            mean_age=sum(self._ages) / len(self._ages),
            stale_share=stale / (stale + counts["trained"]),
            episodes=self._loop.delivered,
        )


def _ignore(kind: str, detail: str, **fields: object) -> None:
    """Simulated faults are counted, not recorded."""
