"""Reports what JAX compiles during a run, and for which machine and software."""

from __future__ import annotations

import os
import platform
import threading
from importlib.metadata import version

import jax

from ale_jax.monitor.progress import Progress

EVENT = "/jax/core/compile/backend_compile_duration"
STARTED = "started"  # the kind of the event that records the environment
PACKAGES = ("jax", "jaxlib", "numpy", "ray")
MIN_SECONDS = 1.0  # programs other than the known ones are reported from this compile time on

# Name of the function under jax.jit -> the program's name in messages.
PROGRAMS = {
    "gradient": "the training step: gradient of a microbatch that is alone",
    "add_gradient": "the training step: gradient of a microbatch",
    "update_part": "the training step: the optimizer's update",
    "prefill_and_decode": "the engine: prefill and decode",
    "probability": "the warm start's probe of success",
}


class Compilations:
    """Reports programs that are compiled, in any thread, to `progress` while it is open."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._lock = threading.Lock()
        self._seconds = 0.0

    def __enter__(self) -> Compilations:
        # JAX records the start of a compilation as a scalar of the same name.
        jax.monitoring.register_scalar_listener(self._start)
        jax.monitoring.register_event_duration_secs_listener(self._end)
        return self

    def __exit__(self, *exc: object) -> None:
        jax.monitoring.unregister_scalar_listener(self._start)
        jax.monitoring.unregister_event_duration_listener(self._end)

    def take_seconds(self) -> float:
        """Returns the seconds spent compiling since the last call, summed over threads."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _start(self, event: str, value: float, **fields: str | int) -> None:
        if event == EVENT and (known := PROGRAMS.get(_function(fields))):
            self._progress.compile_started(known)

    def _end(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event != EVENT:
            return
        with self._lock:
            self._seconds += duration_secs
        name = _function(kwargs)
        told = name in PROGRAMS or duration_secs >= MIN_SECONDS
        self._progress.compile_ended(PROGRAMS.get(name, name), duration_secs, told)


def _function(fields: dict[str, str | int]) -> str:
    """JAX names the program of a function f "jit_f" or "jit(f)"."""
    return str(fields.get("fun_name", "a program")).removeprefix("jit").strip("_()")


def keep_compiled(folder: str) -> None:
    """Uses `folder` as JAX's persistent compilation cache, for programs that took a second or more
    to compile. An empty `folder` changes nothing. Hosts of one run may share the folder."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)


def environment(mesh: jax.sharding.Mesh) -> str:
    """Describes the software and hardware. The text is the same on the same machine with the same
    software."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    device = mesh.devices.flat[0]
    return (
        f"{packages}, Python {platform.python_version()}; {os.cpu_count()} CPU cores, "
        f"{platform.machine()}; {mesh.devices.size} x {device.device_kind}"
    )
