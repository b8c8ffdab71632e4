"""The product's launcher with one fault in its process, or with somebody who looks on:

    python -m benchmarks.survival.launcher FAULT [the arguments of ale_jax.launch]

Each fault replaces a function of the product before the run begins, and touches the file of the
run's mark when it happens, from which on time counts.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ale_jax import launch
from ale_jax.engine.engine import Engine
from ale_jax.learn import manifest, step
from ale_jax.learn.checkpoint import OrbaxFiles
from ale_jax.learn.learner import Learner
from ale_jax.learn.step import UpdateStep
from benchmarks.survival.processes import MARK
from benchmarks.survival.watch import watch

AT_DISPATCH = 60
AT_STEP = 3  # the number of the update, since the process began
COLLECTION_S = 2.0  # a collection so long after the first step brings the signal
LOOK_S = 0.0005


def happened(detail: str = "") -> None:
    Path(os.environ[MARK]).write_text(detail)


def replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Puts `make(function)` in the place of a function of the product."""
    setattr(owner, name, make(getattr(owner, name)))


def engine_fails() -> None:
    calls = []

    def failing(perform: Callable) -> Callable:
        def performed(self, dispatch):
            calls.append(1)
            if len(calls) == AT_DISPATCH:
                happened()
                raise RuntimeError("injected: the device is gone")
            return perform(self, dispatch)

        return performed

    replace(Engine, "_begin", failing)


def nan_in_gradient() -> None:
    calls = []

    def spoiling(to_device: Callable) -> Callable:
        def moved(batch, mesh):
            arrays = to_device(batch, mesh)
            calls.extend(["advantage_BT"] if "advantage_BT" in arrays else [])
            if len(calls) == AT_STEP:
                happened()
                arrays["advantage_BT"] = arrays["advantage_BT"] * jnp.nan
            return arrays

        return moved

    replace(step, "to_device", spoiling)


def nan_in_weights() -> None:
    calls = []

    def spoiling(update: Callable) -> Callable:
        def updated(self, state, *arguments):
            calls.append(1)
            if len(calls) == AT_STEP:
                happened()
                state = state.replace(params=jax.tree.map(lambda w: w * jnp.nan, state.params))
            return update(self, state, *arguments)

        return updated

    replace(UpdateStep, "__call__", spoiling)


def read_error() -> None:
    """One, while a checkpoint is verified."""
    calls = []

    def failing(file_digest: Callable) -> Callable:
        def digested(path):
            calls.append(1)
            if len(calls) == 1:
                happened()
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return file_digest(path)

        return digested

    replace(manifest, "file_digest", failing)


def signal_in_collection() -> None:
    """SIGTERM arrives while Python collects garbage in the main thread, so its handler runs within
    the collector, which swallows exceptions."""
    first_step: list[float] = []

    def noting(learn: Callable) -> Callable:
        def learned(*arguments):
            first_step.append(time.monotonic())
            return learn(*arguments)

        return learned

    def collecting(phase: str, info: dict[str, int]) -> None:
        if not first_step or threading.current_thread() is not threading.main_thread():
            return
        if time.monotonic() - first_step[0] > COLLECTION_S:
            gc.callbacks.remove(collecting)
            happened()
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):  # so that the handler runs here
                pass

    replace(Learner, "learn", noting)
    gc.callbacks.append(collecting)


def memory() -> None:
    """Writes down the peak of live bytes during a restore, and those of the state, and ends."""

    def live_bytes() -> int:
        return sum(array.nbytes for array in jax.live_arrays())

    def measuring(read: Callable) -> Callable:
        def measured(self, folder, target):
            peak, over = [live_bytes()], threading.Event()

            def look() -> None:
                while not over.wait(LOOK_S):
                    peak.append(live_bytes())

            looking = threading.Thread(target=look)
            looking.start()
            found = read(self, folder, target)
            over.set()
            looking.join()
            peak.append(live_bytes())
            state = sum(array.nbytes for array in jax.tree.leaves(found))
            happened(json.dumps({"peak": max(peak), "state": state, "looks": len(peak)}))
            raise KeyboardInterrupt

        return measured

    replace(OrbaxFiles, "read", measuring)


FAULTS: dict[str, Callable[[], None]] = {
    "engine_fails": engine_fails,
    "nan_in_gradient": nan_in_gradient,
    "nan_in_weights": nan_in_weights,
    "read_error": read_error,
    "signal_in_collection": signal_in_collection,
    "memory": memory,
    "watch": watch,
}


if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.exit(launch.main_program(["ale_jax.launch", *sys.argv[2:]]))
