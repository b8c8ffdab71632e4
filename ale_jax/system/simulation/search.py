"""Which of the schedules around a config's is the fastest, as far as its error lets one tell."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from ale_jax.config.run import RunConfig
from ale_jax.system.simulation.fit import Costs
from ale_jax.system.simulation.observed import Outcome
from ale_jax.system.simulation.predict import places_of, predict

ALPHAS = (0.0, 0.5, 1.0, 2.0)
PLACES = (0.5, 1.0, 2.0)  # times those of the config
REDUNDANT = 1 / 8  # of a step's groups


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A schedule. outcome: of its simulation. beyond: whether it has more episodes in progress than
    were measured."""

    config: RunConfig
    outcome: Outcome
    beyond: bool

    @property
    def effort(self) -> tuple[float, int, int]:
        """What it costs beside time, in the order in which less is better."""
        rl = self.config.rl
        return rl.alpha, rl.redundant_groups, places_of(self.config)


def search(config: RunConfig, costs: Costs) -> list[Candidate]:
    """Simulates the config, and then all those around it."""
    engines = costs.crowding.engines.number
    return [
        Candidate(each, predict(each, costs), 0 < costs.most_playing < places_of(each))
        for each in _around(config, costs.tells_places, engines)
    ]


def best(candidates: Sequence[Candidate], error: float) -> Candidate:
    """Returns, of those that cannot be told from the fastest with such an error, the one with the
    least staleness, then the fewest redundant groups, then the fewest places.

    error: share of a figure by which it may be off.
    """
    limit = min(each.outcome.seconds_per_step for each in candidates) * (1.0 + error)
    told = [each for each in candidates if each.outcome.seconds_per_step <= limit]
    return min(told, key=lambda each: each.effort)


def changes(config: RunConfig, other: RunConfig) -> list[str]:
    """Returns the arguments that make the schedule of `config` that of `other`."""
    fields = (
        *(("rl", name) for name in ("alpha", "stragglers", "redundant_groups")),
        ("rollout", "episodes_per_actor"),
    )
    return [
        f"--config.{section}.{name}={value}"
        for section, name in fields
        if (value := getattr(getattr(other, section), name))
        != getattr(getattr(config, section), name)
    ]


def _around(config: RunConfig, other_places: bool, engines: int) -> Iterator[RunConfig]:
    """Yields the config, and all with other alphas, places and redundant groups. More places than
    the engines have slots would only wait for these."""
    rl, rollout = config.rl, config.rollout
    alphas = sorted({*ALPHAS, rl.alpha})
    times = PLACES if other_places else (1.0,)
    sizes = sorted({max(round(each * rollout.episodes_per_actor), 1) for each in times})
    slots = max(engines * config.engine.max_sequences, places_of(config))
    redundant = sorted({0, rl.redundant_groups, math.ceil(REDUNDANT * rl.groups_per_step)})
    yield config
    for alpha, size, spare in itertools.product(alphas, sizes, redundant):
        late = "drop" if spare else rl.stragglers
        schedule = dataclasses.replace(rl, alpha=alpha, redundant_groups=spare, stragglers=late)
        workers = dataclasses.replace(rollout, episodes_per_actor=size)
        other = dataclasses.replace(config, rl=schedule, rollout=workers)
        if other != config and places_of(other) <= slots:
            yield other
