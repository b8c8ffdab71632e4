"""What a run of a config would come to, by what episodes and updates cost elsewhere."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Sequence

from ale_jax.config.rollout import THREADS
from ale_jax.config.run import RunConfig
from ale_jax.monitor.times import Times
from ale_jax.records import EpisodeKey
from ale_jax.status import Status
from ale_jax.system.simulation.engines import engines_of
from ale_jax.system.simulation.fit import Costs
from ale_jax.system.simulation.observed import Outcome, TimedStep, observed
from ale_jax.system.simulation.run import DAY_S, NEVER, Draw, Setup, simulate
from ale_jax.system.simulation.sides import learners_of, lent_devices
from ale_jax.system.simulation.updates import PROPORTIONAL, Scaling
from ale_jax.system.simulation.world import Course, Crowding

EPISODES = 1000  # that are simulated at least, after BEGIN steps that do not count
BEGIN, LEAST_STEPS = 5, 25
MOST_ATTEMPTS = 30_000  # for schedules whose steps are very unlike; they take half a minute
P99 = statistics.NormalDist().inv_cdf(0.99)


@dataclasses.dataclass(frozen=True)
class Check:
    """What was predicted for the steps of a run that nothing was fitted to, and what they came
    to. name: of the run."""

    name: str
    predicted: Outcome
    found: Outcome

    @property
    def error(self) -> float:
        """By how much the predicted steps per hour are off, as a share of those of the run."""
        return self.found.seconds_per_step / self.predicted.seconds_per_step - 1.0

    @property
    def by_chance(self) -> float:
        """The standard error of `error`, from that of both."""
        return math.hypot(self.found.error, self.predicted.error) * (1.0 + self.error)


def check(
    name: str, config: RunConfig, costs: Costs, times: Times, steps: Sequence[TimedStep]
) -> Check:
    """Compares steps of a run with what is predicted for its config."""
    return Check(name, predict(config, costs), observed(times, steps, places_of(config)))


def predict(config: RunConfig, costs: Costs) -> Outcome:
    """Simulates a run of the config. ValueError if it has what simulations do not know."""
    require_known(config)
    rl = config.rl
    steps = max(math.ceil(EPISODES / (rl.groups_per_step * rl.group_size)), LEAST_STEPS)
    played = (rl.groups_per_step + rl.redundant_groups) * (rl.group_size + rl.redundant_members)
    most = MOST_ATTEMPTS // played
    return simulate(setup_of(config, costs), costs.course, steps, config.seed, BEGIN, most)


def places_of(config: RunConfig) -> int:
    """Returns how many episodes a run plays at once."""
    return config.rollout.actors * config.rollout.episodes_per_actor


def setup_of(config: RunConfig, costs: Costs) -> Setup:
    """Returns the schedule of a run. What missed a deadline is among the recorded failures.
    ValueError as of `update_seconds` and `lent_devices`."""
    rl = config.rl
    return Setup(
        groups_per_step=rl.groups_per_step,
        group_size=rl.group_size,
        places=places_of(config),
        update_seconds=update_seconds(config, costs),
        alpha=rl.alpha,
        stragglers=rl.stragglers,
        redundant_groups=rl.redundant_groups,
        redundant_members=rl.redundant_members,
        retries=config.rollout.retries,
        deadlines=NEVER,
        pause_seconds=costs.pause_seconds,
        crowding=crowding_of(config, costs),
        reward_workers=judges_of(config),
        lent=lent_devices(config, costs.scaling),
    )


def update_seconds(config: RunConfig, costs: Costs) -> float:
    """Returns what an update alone takes on the devices that learn. ValueError if nothing tells
    it."""
    learners, measured = learners_of(config), costs.learners
    if learners == measured or not (learners and measured):  # or nobody says how many these are
        return costs.update_seconds
    if costs.scaling is PROPORTIONAL:
        raise ValueError(
            f"updates on {measured} devices do not tell what they take on {learners}: set the "
            "hardware of the runs, or give --update-speedup, or name runs that were lent devices, "
            "or had other rollout.engine_devices"
        )
    return costs.update_seconds / costs.scaling.faster(measured, learners)


def crowding_of(config: RunConfig, costs: Costs) -> Crowding:
    """Returns what slows down what, with the engines of a run."""
    engines = dataclasses.replace(engines_of(config), dispatch=costs.dispatch or 0.0)
    return dataclasses.replace(costs.crowding, engines=engines)


def judges_of(config: RunConfig) -> int:
    """Returns how many reward workers a run has."""
    rollout = config.rollout
    return rollout.reward_workers * (1 if rollout.workers == THREADS else rollout.actors)


def require_known(config: RunConfig) -> None:
    """Raises ValueError, with the field's name, if a config has what simulations do not know."""
    rl = config.rl
    for name, value, known in (
        ("rl.max_uses", rl.max_uses, 1),
        ("rl.fill_queue", rl.fill_queue, False),
        ("rl.dynamic_sampling", rl.dynamic_sampling, False),
        ("resampling.scheme", config.resampling.scheme, "none"),
    ):
        if value != known:
            raise ValueError(f"{name} {value} cannot be simulated: set it to {known}")
    if len(config.worlds.train) > 1:
        raise ValueError(
            f"worlds.train has {len(config.worlds.train)} domains, and of several it cannot be "
            "simulated how they wait for each other: leave one"
        )


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """Draws the courses of attempts of log-normal durations. median, p99: seconds. lost: the share
    that loses its sandbox, at a uniformly drawn moment."""

    median: float
    p99: float
    lost: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.median <= self.p99 <= DAY_S:
            raise ValueError(
                f"--episode-seconds={self.median:g},{self.p99:g} must be MEDIAN,P99, with 0 < "
                f"MEDIAN <= P99 <= {DAY_S:g}"
            )
        if not 0.0 <= self.lost < 1.0:
            raise ValueError(f"--lost={self.lost:g} must be a share from 0 to below 1")

    def __call__(self, key: EpisodeKey, chance: random.Random) -> Course:
        spread = math.log(self.p99 / self.median) / P99
        seconds = self.median * math.exp(chance.gauss(0.0, spread))
        if chance.random() < self.lost:
            return Course(seconds * chance.random(), Status.SANDBOX_LOST, None)
        return Course(seconds)


def given_costs(course: Draw, seconds: float, scaling: Scaling = PROPORTIONAL) -> Costs:
    """Returns costs that were not measured. seconds: of an update. ValueError if these are no
    time."""
    if not 0.0 <= seconds <= DAY_S:
        raise ValueError(f"--update-seconds={seconds:g} must be 0 or more, and at most {DAY_S:g}")
    return Costs(course, seconds, 0.0, scaling=scaling)
