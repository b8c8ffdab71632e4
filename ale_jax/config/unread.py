"""Fields that a command sets although nothing reads them, because what they belong to is off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from ale_jax.config.algo import FROM_CRITICS
from ale_jax.config.run import RunConfig


@dataclasses.dataclass(frozen=True)
class Unread:
    """A section that nothing reads while `is_off`. switches: dotted names of the fields that turn
    it on. remedy: what they are set to then."""

    section: str
    switches: tuple[str, ...]
    is_off: Callable[[RunConfig], bool]
    remedy: str


SECTIONS = (
    Unread("lora", ("lora.rank",), lambda c: not c.lora.rank, "above 0"),
    Unread(
        "critics",
        ("critics.count",),
        lambda c: not c.critics.count,
        f"above 0, with algo.advantage.estimator one of {', '.join(FROM_CRITICS)}",
    ),
    Unread(
        "attention_credit",
        ("attention_credit.credit",),
        lambda c: c.attention_credit.credit == "none",
        "to another than none",
    ),
    Unread(
        "resampling",
        ("resampling.scheme",),
        lambda c: c.resampling.scheme == "none",
        "to another than none",
    ),
    Unread(
        "external_agent",
        ("external_agent.command",),
        lambda c: not c.external_agent.command,
        "to the agent's command line",
    ),
    Unread(
        "hardware",
        ("hardware.chip", "hardware.devices"),
        lambda c: not c.hardware.chip,
        "to what the run is planned for",
    ),
    Unread(
        "teacher",
        ("teacher.weights", "teacher.endpoint"),
        lambda c: not c.teacher.is_given,
        "to a teacher (one of the two)",
    ),
    Unread("preferences", ("preferences.data",), lambda c: not c.preferences.data, "to pairs"),
    Unread(
        "preferences_optimizer",
        ("preferences.data",),
        lambda c: not c.preferences.data,
        "to pairs",
    ),
    Unread(
        "warm_start_optimizer",
        ("warm_start.max_steps",),
        lambda c: not c.warm_start.max_steps,
        "above 0",
    ),
    Unread("rl_optimizer", ("rl.steps",), lambda c: not c.rl.steps, "above 0"),
)


def refuse_unread(config: RunConfig, given: Collection[str]) -> None:
    """Refuses fields that nothing reads. given: dotted names of those that a command sets; what a
    file sets may belong to what a command turns off.

    Raises:
      ValueError: one is not read, with the field that would have it read.
    """
    for each in SECTIONS:
        unread = [
            name
            for name in sorted(given)
            if name.startswith(f"{each.section}.") and name not in each.switches
        ]
        if unread and each.is_off(config):
            switches = " and ".join(each.switches)
            raise ValueError(
                f"config.{unread[0]} is not read without {switches}: set {switches} "
                f"{each.remedy}, or leave {unread[0]} out"
            )
