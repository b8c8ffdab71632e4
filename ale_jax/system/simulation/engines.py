"""Several engines: episodes are divided among them, and those of one process are dispatched by it
one at a time."""

from __future__ import annotations

import dataclasses

from ale_jax.config.run import RunConfig


@dataclasses.dataclass(frozen=True)
class Engines:
    """number: of engines. processes: among which they are divided equally. dispatch: the share of
    an engine's time, if it is alone, in which its process does nothing but dispatch for it."""

    number: int = 1
    processes: int = 1
    dispatch: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.dispatch < 1.0:
            raise ValueError(f"--dispatch={self.dispatch:g} must be a share from 0 to below 1")

    @property
    def per_process(self) -> int:
        return self.number // self.processes

    def beside(self, playing: float) -> float:
        """Returns how many other episodes an engine has, of so many."""
        return max(playing / self.number - 1.0, 0.0)

    def slower(self, playing: int, crowd: float = 1.0) -> float:
        """Returns how many times slower engines are because they wait for one another's dispatches.

        By mean value analysis of a closed queue (Reiser and Lavenberg, 1980), whose customers are
        the engines that have episodes, and whose server is their process. It takes times to be
        exponential; those of engines are more even, so that they wait less. Half of two engines'
        time each, and one of them waits a quarter of the time:

            >>> Engines(number=2, dispatch=0.5).slower(playing=9)
            1.25

        crowd: as of `Sides`.
        """
        waiting, cycle = 0.0, 1.0  # other engines that are being dispatched, or wait for it
        for engines in range(1, min(round(self.per_process / crowd), playing) + 1):
            at_host = self.dispatch * (1.0 + waiting)
            cycle = 1.0 - self.dispatch + at_host
            waiting = engines * at_host / cycle
        return cycle


ONE = Engines()


def engines_of(config: RunConfig) -> Engines:
    """Returns the engines of a run. ValueError if its config does not say how many."""
    hardware, rollout = config.hardware, config.rollout
    processes = hardware.devices // (hardware.devices_per_process or hardware.devices or 1) or 1
    if not rollout.devices_per_engine:
        return Engines(processes, processes)
    own = rollout.engine_devices or hardware.devices // processes
    if not own:
        raise ValueError(
            f"rollout.devices_per_engine {rollout.devices_per_engine}: how many engines these are "
            "depends on the machine: set hardware.chip and hardware.devices"
        )
    return Engines(own // rollout.devices_per_engine * processes, processes)
