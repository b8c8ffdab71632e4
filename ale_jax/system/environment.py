"""What a run's figures depend on beside its config: the software, and the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import jax

STARTED = "started"  # the kind of the event that says it
PACKAGES = ("jax", "jaxlib", "numpy", "ray")


def environment(mesh: jax.sharding.Mesh) -> str:
    """The same text on the same machine with the same software."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    device = mesh.devices.flat[0]
    return (
        f"{packages}, Python {platform.python_version()}; {os.cpu_count()} CPU cores, "
        f"{platform.machine()}; {mesh.devices.size} x {device.device_kind}"
    )
