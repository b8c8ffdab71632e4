"""Starts Ray on this machine, or joins a running cluster, without output and usage statistics, and
notices when it is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import ray

from ale_jax.errors import RolloutsFailed

# Results are small and are returned inline; Ray's default would reserve a third of the memory.
OBJECT_STORE_BYTES = 100 << 20


LOOK_S = 2.0  # between two looks at the cluster
ANSWER_S = 2.0  # for Ray's head to accept a connection
GONE_AFTER = 3  # looks in a row that Ray's head did not answer


class Cluster:
    """A running cluster. `check` raises once Ray's head, or its process on this machine, is gone.

    Ray itself says nothing of either for a minute, and then ends this process from C++, without
    running any `finally`.
    """

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        self._head, self._node = (host, int(port)), context.get_node_id()
        self._failure = ""
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="ray-cluster", daemon=True).start()

    def check(self) -> None:
        """RolloutsFailed if the cluster is gone."""
        if self._failure:
            raise RolloutsFailed(f"{self._failure}: the same command continues and starts Ray anew")

    def close(self) -> None:
        self._closing.set()

    def _watch(self) -> None:
        silent = 0
        while not self._closing.wait(LOOK_S):
            silent = 0 if self._head_answers() else silent + 1
            if silent == GONE_AFTER:
                self._failure = "Ray's head ended ({}:{} does not answer)".format(*self._head)
            # The head would not answer this, either, and the call would wait for it.
            elif not silent and not self._node_is_alive():
                self._failure = "Ray's process on this machine (raylet) ended"
            if self._failure:
                return

    def _head_answers(self) -> bool:
        try:
            with socket.create_connection(self._head, timeout=ANSWER_S):
                return True
        except OSError:
            return False

    def _node_is_alive(self) -> bool:
        return any(node["NodeID"] == self._node and node["Alive"] for node in ray.nodes())


@contextlib.contextmanager
def ray_cluster(actors: int, address: str = "") -> Iterator[Cluster]:
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


def _joined(actors: int) -> Iterator[Cluster]:
    cluster = None
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < actors:
            raise ValueError(
                f"rollout.actors {actors} need a CPU each, and the cluster has only {cpus}: "
                f"lower rollout.actors or add machines"
            )
        cluster = Cluster()
        yield cluster
    finally:
        if cluster:
            cluster.close()
        ray.shutdown()
