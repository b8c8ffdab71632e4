"""A command that sets what nothing reads is refused, with the field that would have it read."""

import dataclasses

import pytest

from ale_jax.config.run import RunConfig
from ale_jax.config.unread import SECTIONS, refuse_unread
from tests.rows import each_row

OFF = dataclasses.replace(
    RunConfig(), rl=dataclasses.replace(RunConfig().rl, steps=0)
)  # every other section is off by default


@each_row(
    "given, switch",
    [
        ("lora.alpha", "lora.rank"),
        ("critics.mask_share", "critics.count"),
        ("critics.optimizer.learning_rate", "critics.count"),
        ("attention_credit.window", "attention_credit.credit"),
        ("resampling.memory", "resampling.scheme"),
        ("external_agent.port", "external_agent.command"),
        ("hardware.devices_per_process", "hardware.chip and hardware.devices"),
        ("teacher.stays", "teacher.weights and teacher.endpoint"),
        ("preferences.beta", "preferences.data"),
        ("preferences_optimizer.learning_rate", "preferences.data"),
        ("warm_start_optimizer.name", "warm_start.max_steps"),
        ("rl_optimizer.name", "rl.steps"),
    ],
)
def test_what_nothing_reads_is_refused(given, switch):
    with pytest.raises(ValueError, match=f"config.{given} is not read without {switch}: set"):
        refuse_unread(OFF, ["rl.alpha", given])


def test_what_is_read_is_accepted():
    switches = [name for each in SECTIONS for name in each.switches]
    refuse_unread(OFF, [*switches, "rl.alpha", "seed"])
    on = dataclasses.replace(OFF, critics=dataclasses.replace(OFF.critics, count=2))
    refuse_unread(on, ["critics.mask_share", "critics.optimizer.learning_rate"])
