"""Starts Ray on this machine, or joins a running cluster, without output and usage statistics."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import ray

# Results are small and are returned inline; Ray's default would reserve a third of the memory.
OBJECT_STORE_BYTES = 100 << 20


@contextlib.contextmanager
def ray_cluster(actors: int, address: str = "") -> Iterator[None]:
    """Ray with a CPU for each of `actors`, until the block ends.

    address: of a cluster to join ("auto", or host:port of its head); empty: start a local one.
    Errors: ValueError if the cluster has too few CPUs, ConnectionError if there is no cluster.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's logs are off, because lost actors are reported as events of the run.
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    options = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    # "local", because by default Ray would join a cluster that a killed run or another user has
    # left registered on this machine.
    place = {"address": address} if address else {"address": "local", "num_cpus": actors, **options}
    # From a thread, Ray cannot replace our SIGTERM handler by its own, which would kill its
    # processes before the rollout workers can shut down. The thread lives until the end, because
    # the kernel ends Ray's processes together with the thread that started them.
    with ThreadPoolExecutor(1, thread_name_prefix="ray") as starter, warnings.catch_warnings():
        # JAX warns of every fork, but Ray's forks are followed by exec at once.
        warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
        starter.submit(ray.init, **place, **quiet).result()
        _restore_sigterm()
        yield from _joined(actors)


def _restore_sigterm() -> None:
    """Puts Python's handler back in the place of the one of Ray's C++ code, which aborts."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _joined(actors: int) -> Iterator[None]:
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < actors:
            raise ValueError(
                f"rollout.actors {actors} need a CPU each, and the cluster has only {cpus}: "
                f"lower rollout.actors or add machines"
            )
        yield
    finally:
        ray.shutdown()
