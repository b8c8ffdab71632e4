"""Starts Ray on this machine, or joins the users' cluster, without output and usage statistics, and
notices when it, or one of its nodes, is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import ray
from ray.util import get_node_ip_address

from ale_jax.errors import RolloutsFailed

# Results are small and are returned inline; Ray's default would reserve a third of the memory.
OBJECT_STORE_BYTES = 100 << 20

AUTO = "auto"  # the cluster that this machine is part of, by Ray's own rules
LOOK_S = 1.0  # between two looks at the cluster
ANSWER_S = 2.0  # for Ray's head, or the Ray process of a node, to accept a connection
RESTORE_S = 0.01  # as long, while Ray starts, SIGTERM may end this process at once
GONE_AFTER = 6  # looks in a row that one of Ray's processes did not answer


class Cluster:
    """A running cluster. `check` raises once Ray's head, or its process on this machine, is gone.

    Ray itself says nothing of either for a minute, and then ends this process from C++, without
    running any `finally`.

    address: of this machine, as actors on other nodes reach it; empty if there are no other nodes,
    because Ray was started here.
    """

    def __init__(self, is_ours: bool) -> None:
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        # Connections, and no questions to Ray, which would wait for a head that has just ended.
        self._watched = {
            f"Ray's head ended ({host}:{port} does not answer)": (host, int(port)),
            "Ray's process on this machine (raylet) ended": raylet_of(context.get_node_id()),
        }
        self._is_ours = is_ours
        self.address = "" if is_ours else get_node_ip_address()
        self._remedy = "starts Ray anew" if is_ours else "joins the cluster once it runs again"
        self._failure = ""
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="ray-cluster", daemon=True).start()

    def check(self) -> None:
        """Raises RolloutsFailed if the cluster is gone."""
        if self._failure:
            raise RolloutsFailed(f"{self._failure}: the same command continues, and {self._remedy}")

    def close(self) -> None:
        self._closing.set()

    def _watch(self) -> None:
        silent = dict.fromkeys(self._watched, 0)
        while not self._closing.wait(LOOK_S):
            for what, address in self._watched.items():
                missed = self._missed_looks(address)
                silent[what] = silent[what] + missed if missed else 0
                if silent[what] >= GONE_AFTER:
                    self._failure = what
                    return

    def _missed_looks(self, address: tuple[str, int]) -> int:
        """0 if the process accepts a connection. On this machine, a port at which nobody listens is
        that of a process that has ended."""
        try:
            connect(address)
        except ConnectionRefusedError:
            return GONE_AFTER if self._is_ours else 1
        except OSError:
            return 1
        return 0


def check_address(address: str) -> None:
    """Raises ValueError unless a cluster can be joined at `address`: HOST:PORT of its head, or
    "auto".

    Ray is only started after the warm start, and a typing error should not wait for that.
    """
    host, _, port = address.rpartition(":")
    if address == AUTO:
        return
    if not host or "/" in host or not port.isdecimal():
        raise ValueError(
            f"--ray-address={address} must be HOST:PORT of the cluster's head, or {AUTO}, on a "
            "machine that is a node of the cluster"
        )
    if not answers((host, int(port))):
        raise ValueError(
            f"--ray-address={address}: no connection within {ANSWER_S:g} s: see whether Ray's head "
            "runs there (ray status)"
        )


def alive_nodes() -> frozenset[str]:
    """Ray's ids of the nodes that it believes to be there."""
    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def raylet_of(node: str) -> tuple[str, int]:
    """Address and port of Ray's process (raylet) on the node with this id of Ray's."""
    (found,) = (each for each in ray.nodes() if each["NodeID"] == node)
    return found["NodeManagerAddress"], found["NodeManagerPort"]


def answers(address: tuple[str, int]) -> bool:
    """Returns whether something accepts a connection at this address and port within ANSWER_S."""
    try:
        connect(address)
    except OSError:
        return False
    return True


def connect(address: tuple[str, int]) -> None:
    """Connects, and closes the connection again. OSError if it is not accepted within ANSWER_S."""
    with socket.create_connection(address, timeout=ANSWER_S):
        pass


@contextlib.contextmanager
def ray_cluster(actors: int, address: str = "") -> Iterator[Cluster]:
    """Starts Ray with a CPU for each of `actors`, until the block ends; or the cluster at
    `address`, of whatever size, since nodes may join it later.

    address: of a cluster to join ("auto", or host:port of its head); empty: start a local one.
    Errors: ValueError if there is no cluster at `address`, or it cannot be joined from here.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's logs are off, because lost actors are reported as events of the run.
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    options: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    # "local", because by default Ray would join a cluster that a killed run or another user has
    # left registered on this machine.
    own = {"address": "local", "num_cpus": actors, **options}
    place: dict[str, Any] = {"address": address} if address else own
    # From a thread, Ray cannot replace our SIGTERM handler by its own, which would kill its
    # processes before the rollout workers can shut down. The thread lives until the end, because
    # the kernel ends Ray's processes together with the thread that started them.
    with ThreadPoolExecutor(1, thread_name_prefix="ray") as starter, warnings.catch_warnings():
        # JAX warns of every fork, but Ray's forks are followed by exec at once.
        warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
        try:
            starting = starter.submit(ray.init, **place, **quiet)
            while not starting.done():
                wait([starting], RESTORE_S)
                _restore_sigterm()
            starting.result()
        except (RuntimeError, ConnectionError) as error:
            if not address:
                raise
            raise ValueError(
                f"the Ray cluster at {address} cannot be joined ({error}): see whether it runs, "
                "with the same Python and Ray, and whether this machine is a node of it"
            ) from error
        yield from _joined(is_ours=not address)


def _restore_sigterm() -> None:
    """Puts Python's handler back in the place of the one of Ray's C++ code, which aborts."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _joined(is_ours: bool) -> Iterator[Cluster]:
    cluster = None
    try:
        cluster = Cluster(is_ours)
        yield cluster
    finally:
        if cluster:
            cluster.close()
        ray.shutdown()
