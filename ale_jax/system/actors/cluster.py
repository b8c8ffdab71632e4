"""Starts Ray on this machine, or joins one that runs: without a word, and without calling home."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator

import ray

# Results are small and travel inline; Ray's default would reserve a third of the memory.
OBJECT_STORE_BYTES = 100 << 20


@contextlib.contextmanager
def ray_cluster(actors: int, address: str = "") -> Iterator[None]:
    """Ray with room for `actors`, until the block ends.

    address: of a cluster to join ("auto", or host:port of its head); empty starts one here.
    Errors: ValueError if the cluster has fewer CPUs, ConnectionError if there is none.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    # Not whichever cluster a killed run, or somebody else, has left a note of on this machine.
    place = {"address": address} if address else {"address": "local", "num_cpus": actors, **options}
    with warnings.catch_warnings():
        # JAX warns of every fork; Ray's are followed by exec at once.
        warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
        # What Ray would say of a lost actor is said by our own events.
        with _sigterm_kept():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **place)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < actors:
            raise ValueError(
                f"rollout.actors {actors} need a CPU each, and the cluster has {cpus}: "
                f"lower rollout.actors or add machines"
            )
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray puts a handler of its own in the place of ours, by which its processes are killed before
    our rollout workers could end."""
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
