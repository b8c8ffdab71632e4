"""Which devices learn and which sample: all do both, or each process keeps its last ones for its
engines (`rollout.engine_devices`), so that the learner and the engines compute at the same time.
"""

from __future__ import annotations

from collections import defaultdict

import jax
from jax.sharding import Mesh

from ale_jax.config.run import RunConfig
from ale_jax.model.sharding import make_mesh


def learner_mesh(config: RunConfig) -> Mesh:
    """Returns the mesh of the devices that learn, of all processes. ValueError if `config.mesh`
    does not fit on them, or there are none."""
    of_engines = config.rollout.engine_devices
    if not of_engines:
        return make_mesh(config.mesh)
    _require_whole_hosts(jax.default_backend(), jax.process_count(), of_engines)
    of_process: dict[int, list[jax.Device]] = defaultdict(list)
    for device in jax.devices():
        of_process[device.process_index].append(device)
    learning = [
        device
        for own in of_process.values()
        for device in own[: learners(len(own), len(own), of_engines)]
    ]
    return make_mesh(config.mesh, learning)


def num_devices(config: RunConfig) -> int:
    """Returns how many devices `config.hardware` names, or else the run has."""
    return config.hardware.devices or jax.device_count()


def num_of_process(config: RunConfig) -> int:
    """Returns how many of them a process has."""
    hardware = config.hardware
    if hardware.chip:
        return hardware.devices_per_process or hardware.devices
    return jax.local_device_count()


def num_learners(config: RunConfig) -> int:
    """Returns how many of them learn. Errors as of `learners`."""
    of_engines, of_process = config.rollout.engine_devices, num_of_process(config)
    devices, platform = num_devices(config), config.hardware.platform or jax.default_backend()
    _require_whole_hosts(platform, devices // of_process, of_engines)
    return learners(devices, of_process, of_engines)


def _require_whole_hosts(platform: str, processes: int, of_engines: int) -> None:
    """ValueError if the compiler would refuse the learner's programs."""
    if of_engines and platform == "tpu" and processes > 1:
        raise ValueError(
            f"rollout.engine_devices {of_engines} with {processes} processes: the compiler refuses "
            "programs on a part of the TPUs of several hosts. Set it to 0, or use one host"
        )


def learners(devices: int, of_process: int, of_engines: int) -> int:
    """Returns how many of some devices learn. of_process: those of each process. of_engines: those
    among these that its engines have for themselves. ValueError if they have all.

    >>> learners(16, of_process=8, of_engines=2)
    12
    """
    if of_engines and of_engines >= of_process:
        raise ValueError(
            f"rollout.engine_devices {of_engines} leaves none of a process's {of_process} devices "
            "to the learner: lower it, or set it to 0, so that all learn and sample"
        )
    return devices - devices // of_process * of_engines
