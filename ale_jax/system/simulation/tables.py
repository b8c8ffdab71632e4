"""Predictions for a person: what they rest on, how far off they were, and what to set."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table

from ale_jax.config.run import RunConfig
from ale_jax.system.simulation.divisions import untold
from ale_jax.system.simulation.fit import Costs
from ale_jax.system.simulation.observed import Outcome
from ale_jax.system.simulation.predict import Check, crowding_of, places_of, update_seconds
from ale_jax.system.simulation.search import Candidate, best, changes
from ale_jax.system.simulation.sides import learners_of, lent_devices, num_lent
from ale_jax.system.simulation.updates import PROPORTIONAL

WIDTH = 140  # if the output is not a terminal
SHOWN = 8  # of the fastest schedules
UNCHECKED = 0.1  # by which a figure may be off if no run was there to tell

LEFT_OUT = (
    "Left out: what staleness and dropped groups do to learning, evaluations and the warm start, "
    "pages that the engine swaps out, moves of conversations between engines, and that other "
    "schedules may need other pages or memory."
)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A column. unit: of its error. form: of its value, as a format."""

    name: str
    unit: str
    form: str
    of: Callable[[Outcome], float]

    def text(self, outcome: Outcome) -> str:
        return format(abs(self.of(outcome)), self.form)  # rounding may leave -0


STEPS = Figure("steps per hour", "", ".4g", lambda outcome: 3600.0 / outcome.seconds_per_step)
FIGURES = (
    STEPS,
    Figure("learner idle, %", "points", ".1f", lambda found: 100.0 * (1.0 - found.learner_busy)),
    Figure("places idle, %", "points", ".1f", lambda found: 100.0 * (1.0 - found.places_busy)),
    Figure("mean age", "", ".2f", lambda found: found.mean_age),
    Figure("dropped, %", "points", ".1f", lambda found: 100.0 * found.stale_share),
)
LENT = Figure("updates lent, %", "points", ".1f", lambda found: 100.0 * found.lent_share)
Figures = Sequence[Figure]


def show(
    config: RunConfig, costs: Costs, checks: Sequence[Check], candidates: Sequence[Candidate]
) -> None:
    """Prints the checks, the config's prediction and the fastest ones, and what to set for the
    best."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    lends = any(each.division[1] for each in candidates)
    figures = (*FIGURES, LENT) if lends else FIGURES
    for line in _basis(config, costs):
        say(line)
    if checks:
        console.print(_check_table(checks, figures))
    console.print(_table(candidates, checks, figures))
    for line in _advice(config, candidates, checks):
        say(line)


def _basis(config: RunConfig, costs: Costs) -> Iterator[str]:
    seconds = update_seconds(config, costs)
    yield (
        f"An update alone takes {seconds:.3g} s, and {costs.pause_seconds:.3g} s pass before the "
        "learner asks for more."
    )
    yield from _devices(config, costs)
    effects = {
        "an episode by {:.1%} for each other one": costs.crowding.episodes,
        "an episode by {:.0%} during an update": costs.crowding.update,
        "an update by {:.1%} for each episode": costs.crowding.learner,
    }
    if told := [text.format(effect) for text, effect in effects.items() if round(effect, 3)]:
        most = f" (measured with up to {costs.most_playing} episodes in progress)"
        yield f"What is in progress at once slows down: {'; '.join(told)}{most}."
    engines = crowding_of(config, costs).engines
    if engines.number > 1:
        waits = engines.slower(engines.number) - 1.0
        dispatched = (
            f"; {engines.per_process} of a process wait for one another's dispatches "
            f"({waits:.1%} slower), as if episodes did nothing but sample"
        )
        yield (
            f"Of {engines.number} engines each has its share of the episodes, which slow down "
            f"those of the same engine alone{dispatched if costs.dispatch is not None else ''}."
        )
    for each in costs.unknown:
        yield f"Not told by these times: {each}."
    if why := untold(config, costs):
        yield f"{why}."


def _devices(config: RunConfig, costs: Costs) -> Iterator[str]:
    """Yields what updates on other devices rest on."""
    scaling, lent = costs.scaling, lent_devices(config, costs.scaling)
    if scaling is PROPORTIONAL:
        if lent:
            yield (
                f"With lent devices it is taken to be {lent.faster:.3g} times as fast, in "
                "proportion to their number."
            )
        return
    known = f"measured on {scaling.least:g} to {scaling.most:g}"
    yield (
        f"On twice the devices it is {scaling.doubled:.3g} times as fast "
        f"({known if math.isfinite(scaling.most) else 'given'}). Updates and episodes are taken to "
        "slow each other down as much, however devices are divided."
    )
    if lent:
        own = learners_of(config)
        told = "" if scaling.tells(own, own + num_lent(config)) else ", beyond what was measured"
        yield f"With lent devices it is {lent.faster:.3g} times as fast{told}."


def _check_table(checks: Sequence[Check], figures: Figures) -> Table:
    names = (Column(figure.name, no_wrap=figure is STEPS) for figure in figures)
    table = Table(
        "run that nothing was fitted to", *names, title="Predicted / real (error ± by chance)"
    )
    for each in checks:
        first, *others = (f"{f.text(each.predicted)} / {f.text(each.found)}" for f in figures)
        table.add_row(
            each.name, f"{first} ({100 * each.error:+.1f} ± {100 * each.by_chance:.1f}%)", *others
        )
    return table


def shown(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the first candidate, which is the config, and the fastest of the others."""
    config, *others = candidates
    return [config, *sorted(others, key=lambda each: each.outcome.seconds_per_step)[:SHOWN]]


def _table(candidates: Sequence[Candidate], checks: Sequence[Check], figures: Figures) -> Table:
    heads = [f"{figure.name}\n{_error(figure, checks)}" for figure in figures]
    divided = any(each.division[0] for each in candidates)
    devices = ("engine devices", "lent engines") if divided else ()
    table = Table("alpha", "places", "redundant groups", *devices, *heads, title="Predicted")
    for number, each in enumerate(shown(candidates)):
        rl, places = each.config.rl, f"{places_of(each.config)}{'*' * each.beyond}"
        division = map(str, each.division) if divided else ()
        values = (figure.text(each.outcome) for figure in figures)
        schedule = f"{rl.alpha:g}", places, str(rl.redundant_groups)
        table.add_row(*schedule, *division, *values, end_section=number == 0)
    return table


def _error(figure: Figure, checks: Sequence[Check]) -> str:
    if not checks:
        return "error unknown"
    if figure is STEPS:
        return f"± {worst(checks):.1%}"
    apart = max(abs(figure.of(each.predicted) - figure.of(each.found)) for each in checks)
    return f"± {format(apart, figure.form)} {figure.unit}".strip()


def worst(checks: Sequence[Check]) -> float:
    """Returns the largest error of the steps per hour, as a share."""
    return max(abs(each.error) for each in checks)


def _advice(
    config: RunConfig, candidates: Sequence[Candidate], checks: Sequence[Check]
) -> Iterator[str]:
    if checks:
        error = worst(checks)
        yield "Errors are of the schedules above that were run; those of others may be larger."
    else:
        error = UNCHECKED
        yield (
            "No error is known, as nothing was compared with a run: name one by --check. Schedules "
            f"less than {error:.0%} apart are taken as equal."
        )
    if any(each.beyond for each in candidates):
        yield "* more episodes at once than were measured."
    if len({each.division for each in candidates}) > 1:
        yield (
            "Other divisions of devices were tried with the fastest schedule, and other schedules "
            "with the fastest of these."
        )
    yield LEFT_OUT
    chosen = best(candidates, error)
    if arguments := changes(config, chosen.config):
        yield "Of those that cannot be told from the fastest, the least stale and smallest:"
        yield "  " + " ".join(arguments)
    else:
        yield "No schedule can be told to be faster than the config's."
