"""Which of the schedules around a config's is the fastest, as far as its error lets one tell, and
with which of its devices."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from ale_jax.config.run import RunConfig
from ale_jax.system.checks import check_sections
from ale_jax.system.simulation.divisions import divisions
from ale_jax.system.simulation.engines import engines_of
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
    def effort(self) -> tuple[float, int, int, int]:
        """What it costs beside time, in the order in which less is better."""
        rl = self.config.rl
        return rl.alpha, rl.redundant_groups, places_of(self.config), self.division[1]

    @property
    def division(self) -> tuple[int, int]:
        """Devices of its engines, and lent engines."""
        return self.config.rollout.engine_devices, self.config.rollout.lent_engines


def search(config: RunConfig, costs: Costs) -> list[Candidate]:
    """Simulates the config, and then the schedules around it, other divisions of its devices with
    the fastest of these, and the schedules around it with the fastest division."""
    found = _simulated([config, *_around(config, costs.tells_places)], costs)
    others = _simulated(divisions(_fastest(found).config, costs), costs)
    if not others:
        return found
    best = _fastest([*found, *others])
    found += others
    if best in others:
        chosen = _with_division(config, best.config)
        found += _simulated([chosen, *_around(chosen, costs.tells_places)], costs, but=best.config)
    return found


def _simulated(
    configs: Iterable[RunConfig], costs: Costs, but: RunConfig | None = None
) -> list[Candidate]:
    return [
        Candidate(each, predict(each, costs), _is_beyond(each, costs))
        for each in configs
        if each != but
    ]


def _is_beyond(config: RunConfig, costs: Costs) -> bool:
    if not costs.most_playing:
        return False
    places, engines = places_of(config), engines_of(config).number
    return places > costs.most_playing or places / engines > costs.most_of_engine


def _fastest(candidates: Sequence[Candidate]) -> Candidate:
    return min(candidates, key=lambda each: each.outcome.seconds_per_step)


def _with_division(config: RunConfig, other: RunConfig) -> RunConfig:
    names = ("engine_devices", "lent_engines")
    changed = {name: getattr(other.rollout, name) for name in names}
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **changed))


def best(candidates: Sequence[Candidate], error: float) -> Candidate:
    """Returns, of those that cannot be told from the fastest with such an error, the one with the
    least staleness, then the fewest redundant groups, places and lent engines, then the first.

    error: share of a figure by which it may be off.
    """
    limit = _fastest(candidates).outcome.seconds_per_step * (1.0 + error)
    told = [each for each in candidates if each.outcome.seconds_per_step <= limit]
    return min(told, key=lambda each: each.effort)


def changes(config: RunConfig, other: RunConfig) -> list[str]:
    """Returns the arguments that make the schedule of `config` that of `other`."""
    fields = (
        *(("rl", name) for name in ("alpha", "stragglers", "redundant_groups")),
        *(("rollout", n) for n in ("episodes_per_actor", "engine_devices", "lent_engines")),
    )
    return [
        f"--config.{section}.{name}={value}"
        for section, name in fields
        if (value := getattr(getattr(other, section), name))
        != getattr(getattr(config, section), name)
    ]


def _around(config: RunConfig, other_places: bool) -> Iterator[RunConfig]:
    """Yields all possible configs with other alphas, places and redundant groups."""
    rl, rollout = config.rl, config.rollout
    alphas = sorted({*ALPHAS, rl.alpha})
    times = PLACES if other_places else (1.0,)
    sizes = sorted({max(round(each * rollout.episodes_per_actor), 1) for each in times})
    redundant = sorted({0, rl.redundant_groups, math.ceil(REDUNDANT * rl.groups_per_step)})
    for alpha, size, spare in itertools.product(alphas, sizes, redundant):
        late = "drop" if spare else rl.stragglers
        schedule = dataclasses.replace(rl, alpha=alpha, redundant_groups=spare, stragglers=late)
        workers = dataclasses.replace(rollout, episodes_per_actor=size)
        other = dataclasses.replace(config, rl=schedule, rollout=workers)
        if other != config and _is_consistent(other):
            yield other


def _is_consistent(config: RunConfig) -> bool:
    try:
        check_sections(config)
    except ValueError:
        return False
    return True
