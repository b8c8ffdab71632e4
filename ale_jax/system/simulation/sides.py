"""Devices that change sides in simulated time: engines lend theirs to an update as in a real run,
which takes less time with them, while fewer engines have the same conversations."""

from __future__ import annotations

import dataclasses

from ale_jax.config.run import RunConfig
from ale_jax.model.sides import num_learners
from ale_jax.system.lending import Lending, lending_of
from ale_jax.system.simulation.updates import PROPORTIONAL, Scaling


@dataclasses.dataclass(frozen=True)
class LentDevices:
    """lending: decides when they are lent. faster: how many times faster an update is with them."""

    lending: Lending
    faster: float

    @property
    def crowd(self) -> float:
        """How many times as many conversations an engine has while others are lent."""
        return self.lending.engines / (self.lending.engines - self.lending.count)


def learners_of(config: RunConfig) -> int:
    """Returns how many devices learn; 0 if the config does not say it. ValueError if none do."""
    return num_learners(config) if config.hardware.devices else 0


def num_lent(config: RunConfig) -> int:
    """Returns how many devices an update is lent."""
    rollout = config.rollout
    return rollout.lent_engines * (rollout.devices_per_engine or rollout.engine_devices)


def lent_devices(config: RunConfig, scaling: Scaling = PROPORTIONAL) -> LentDevices | None:
    """Returns what a config lends, None if nothing. scaling: of updates. ValueError, by the field's
    name, if it cannot lend, or does not say how many devices learn."""
    rollout = config.rollout
    if rollout.lent_engines and not config.hardware.devices:
        raise ValueError(
            f"rollout.lent_engines {rollout.lent_engines}: how many devices learn beside these "
            "depends on the machine: set hardware.chip and hardware.devices"
        )
    if (lending := lending_of(config)) is None:
        return None
    own = num_learners(config)
    return LentDevices(lending, scaling.faster(own, own + num_lent(config)))


class Sides:
    """Decides when an update begins, and holds until it has ended."""

    def __init__(self, devices: LentDevices | None):
        """devices: None if none are ever lent."""
        self._devices, self._are_lent = devices, False

    def begin_update(self, in_progress: int) -> bool:
        """Returns whether an update is lent devices. in_progress: conversations."""
        if self._devices:
            self._are_lent = self._devices.lending.lends(in_progress, self._are_lent)
        return self._are_lent

    @property
    def speed(self) -> float:
        """How many times faster the update is than one on the learner's own devices."""
        return self._devices.faster if self._devices and self._are_lent else 1.0

    @property
    def crowd(self) -> float:
        """How many times as many conversations an engine has, because others are lent."""
        return self._devices.crowd if self._devices and self._are_lent else 1.0
