"""Other divisions of a run's devices, as far as measured runs tell how fast they are: how many only
sample (`rollout.engine_devices`), and how many engines lend theirs (`rollout.lent_engines`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ale_jax.config.run import RunConfig
from ale_jax.model.sharding import check_rows
from ale_jax.model.sides import num_of_process
from ale_jax.system.checks import check_sections
from ale_jax.system.plan import make_plan, planned
from ale_jax.system.simulation.fit import Costs
from ale_jax.system.simulation.sides import learners_of, num_lent

SPLIT, LENDING = "rollout.engine_devices", "rollout.lent_engines"


def untold(config: RunConfig, costs: Costs) -> str:
    """Returns which of both is not varied, and why; empty if both are."""
    if reason := _unknown(config, costs):
        return f"{SPLIT} and {LENDING} are not varied: {reason}"
    if costs.dispatch is None:
        return (
            f"{SPLIT} is not varied: what other numbers of engines cost their process is not told: "
            "give --dispatch"
        )
    return ""


def _unknown(config: RunConfig, costs: Costs) -> str:
    """Returns why no other division can be predicted; empty if some can."""
    if not config.rollout.engine_devices:
        return "how fast devices are that all learn and sample says nothing of others"
    if not config.rollout.devices_per_engine:
        return (
            "how fast engines of other sizes are is not told: set rollout.devices_per_engine, so "
            "that there are several of one size"
        )
    if not (costs.learners and learners_of(config)):
        return "how many devices there are is not told: set hardware.chip and hardware.devices"
    if not (costs.most_playing and costs.tells_places):
        return "how much episodes of an engine slow each other down is not told by runs"
    if not costs.scaling.tells(costs.learners):
        return (
            "how much faster updates are with more devices is not told: name runs that were lent "
            "some, or had another split, or give --update-speedup"
        )
    return ""


def divisions(config: RunConfig, costs: Costs) -> Iterator[RunConfig]:
    """Yields the possible configs with another division, of those whose speed is told."""
    if _unknown(config, costs):
        return
    rollout, size = config.rollout, config.rollout.devices_per_engine
    own = rollout.engine_devices // size
    all_numbers = range(1, num_of_process(config) // size + 1)
    for engines in [own] if costs.dispatch is None else all_numbers:
        for lent in sorted({0, 1, engines // 2, engines - 1, rollout.lent_engines}):
            divided = dataclasses.replace(rollout, engine_devices=engines * size, lent_engines=lent)
            other = dataclasses.replace(config, rollout=divided)
            if other != config and _is_known(other, costs):
                yield other


def _is_known(config: RunConfig, costs: Costs) -> bool:
    """Returns whether the speed of a config's updates is told, and a run would begin with it on the
    hardware that it names."""
    try:
        own = learners_of(config)
        if not costs.scaling.tells(own, own + num_lent(config)):
            return False
        check_sections(config)
        _, mesh, _ = planned(config)
        check_rows(config.learn.microbatch_rows, mesh)
        make_plan(config).require_fit()
    except ValueError:
        return False
    return True
