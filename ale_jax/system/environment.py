"""The process that a run is in: its cache of compiled programs, its software and its machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import jax


def keep_compiled(folder: str) -> None:
    """From here on programs that took a second or more to compile are kept in `folder`, and taken
    from there. Empty: none is. Hosts of one run may share it."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)


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
