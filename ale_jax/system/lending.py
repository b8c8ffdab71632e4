"""When engines lend their devices to the learner: for an update that begins while so few
conversations are in progress that the other engines have less to do than usual.

    APART --- few enough, with a margin ---> LENT --- publish ---> APART
    LENT again at the next update as long as they are few enough; with a margin after one that was
    not, so that devices do not change sides at every step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from jax.sharding import AbstractMesh

from ale_jax.config.run import RunConfig
from ale_jax.model.sharding import abstract_mesh, check_rows, mesh_sizes
from ale_jax.model.sides import num_devices, num_of_process

MARGIN = 0.75  # of what is few enough, before the first of several updates


@dataclasses.dataclass(frozen=True)
class Lending:
    """engines: of the process. count: how many of them lend their devices. places: conversations
    that are in progress at most."""

    engines: int
    count: int
    places: int

    def lends(self, in_progress: int, lent_before: bool) -> bool:
        """Returns whether the next update is lent devices. in_progress: conversations. lent_before:
        whether the last one was.

        With all places taken, each engine has its share of them. What is in progress is few enough
        if the engines that stay have no more than that.

        >>> lending = Lending(engines=4, count=2, places=80)
        >>> [lending.lends(each, lent_before=False) for each in (30, 40, 41)]
        [True, False, False]
        >>> [lending.lends(each, lent_before=True) for each in (30, 40, 41)]
        [True, True, False]
        """
        few = self.places * (self.engines - self.count) / self.engines
        return in_progress <= (few if lent_before else MARGIN * few)


def lending_of(config: RunConfig) -> Lending | None:
    """Returns how a config lends; None if it does not. ValueError, by the field's name, if it
    cannot."""
    rollout = config.rollout
    if not (count := rollout.lent_engines):
        return None
    given, own = f"rollout.lent_engines {count}", rollout.engine_devices
    if not own:
        raise ValueError(f"{given} is of engines with devices for themselves: set engine_devices")
    engines = own // (rollout.devices_per_engine or own)
    if count >= engines:
        raise ValueError(
            f"{given} leaves no engine: rollout.engine_devices {own} and devices_per_engine "
            f"{rollout.devices_per_engine} make {engines}. Lower it, or devices_per_engine"
        )
    if (processes := num_devices(config) // num_of_process(config)) > 1:
        raise ValueError(f"{given} with {processes} processes: set it to 0, or use one process")
    if config.rl.record_steps:
        raise ValueError(
            f"{given} with rl.record_steps: which devices computed an update is not recorded, and "
            "changes its last bits. Set one of them to 0 or False"
        )
    return Lending(engines, count, rollout.actors * rollout.episodes_per_actor)


def borrowing_mesh(config: RunConfig, sizes: Mapping[str, int]) -> AbstractMesh:
    """Returns the mesh of an update that is lent devices: longer along data. sizes: of the
    learner's. ValueError if it does not divide the rows of a microbatch."""
    rollout = config.rollout
    of_engine = rollout.devices_per_engine or rollout.engine_devices
    devices = math.prod(sizes.values()) + rollout.lent_engines * of_engine
    mesh = abstract_mesh(mesh_sizes(dataclasses.replace(config.mesh, data=-1), devices))
    check_rows(config.learn.microbatch_rows, mesh)
    return mesh
