"""How the processes of a run find each other."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from ale_jax.system.hosts.connection import Connection, Gone

T = TypeVar("T")

LOG, CONVERSATIONS = "log", "conversations"  # what a connection is for
TOKEN_BYTES = 32
ADDRESS_BYTES = 512
CONNECT_S = 60.0  # for all followers to connect, once jax has found them
PACKAGES = ("jax", "jaxlib", "numpy", "ale-jax")
# Variables by which a cluster tells each process how many there are.
CLUSTER_SIZES = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "MEGASCALE_NUM_SLICES")
TPU_HOSTS = "TPU_WORKER_HOSTNAMES"  # separated by commas


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """Which of the processes of a run this is.

    coordinator: HOST:PORT at which the first process listens; empty: as the cluster says, if it
        does. processes: number of processes. process: number of this one, from 0.
    """

    coordinator: str = ""
    processes: int = 1
    process: int = 0

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ValueError(f"--processes={self.processes} must be at least 1")
        if not 0 <= self.process < self.processes:
            raise ValueError(
                f"--process={self.process} must be from 0 to {self.processes - 1}, as there are "
                f"--processes={self.processes}"
            )
        if self.processes > 1 and not self.coordinator:
            raise ValueError(
                "--coordinator is missing: give HOST:PORT of the first process, the same for all"
            )
        port = self.coordinator.rpartition(":")[2]
        if self.coordinator and not (port.isdecimal() and 0 < int(port) <= 65535):
            raise ValueError(
                f"--coordinator={self.coordinator} must be HOST:PORT, with a port from 1 to 65535"
            )


def initialize(options: HostOptions) -> None:
    """Joins jax's processes; nothing if there is only this one. Must precede all other use of jax.

    jax would handle SIGTERM by itself. Here the first process hears of it from whichever process
    got it, and then all of them save the same step, as its log says.
    """
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if options.processes > 1:
        _interruptible(_join, options.coordinator, options.processes, options.process)
    elif _is_in_cluster(os.environ):
        _interruptible(_join)


def _join(*which: Any) -> None:
    jax.distributed.initialize(*which)
    jax.devices()  # the first look at them waits for the other processes, too


def _interruptible(call: Callable[..., T], *arguments: Any) -> T:
    """Calls what waits for other processes in C++, where the main thread would hear of no signal
    until they come: in another thread, for which the main thread waits."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call(*arguments))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="meeting", daemon=True).start()
    return done.result()


def disconnect() -> None:
    """Leaves jax's processes. All of them must call it, since each waits for the others."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _is_in_cluster(environment: Mapping[str, str]) -> bool:
    """Whether a cluster started several processes of this run."""
    sizes = (environment.get(name, "1") for name in CLUSTER_SIZES)
    hosts = environment.get(TPU_HOSTS, "").split(",")
    return len(hosts) > 1 or any(size.isdecimal() and int(size) > 1 for size in sizes)


@contextmanager
def spawned(count: int, argv: Sequence[str]) -> Iterator[HostOptions]:
    """Starts processes 1 to count - 1 on this machine, with the arguments `argv` of this one, after
    which --spawn=1 and others follow: the last of a flag counts.

    They end with this process, whose end closes their logs. If it is interrupted, they are killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    children: list[subprocess.Popen] = []
    try:
        for process in range(1, count):
            own = [f"--coordinator={coordinator}", f"--processes={count}", f"--process={process}"]
            line = [sys.executable, "-m", "ale_jax.launch", *argv, "--spawn=1", *own]
            # Ctrl-C at the terminal is for the first process alone, which tells the others.
            child = subprocess.Popen(line, stdin=subprocess.DEVNULL, start_new_session=True)
            children.append(child)
        yield HostOptions(coordinator, count, 0)
    except KeyboardInterrupt:
        # If the run had begun, they have left it together with this process, and have nothing to do
        # any more. Before that, nobody has told them, and they would wait for this process.
        for child in children:
            child.kill()
        raise
    finally:
        _end(children)


def _end(children: Sequence[subprocess.Popen]) -> None:
    deadline = time.monotonic() + CONNECT_S
    for child in children:
        try:
            child.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def digest(config: Mapping[str, Any]) -> str:
    """Returns the digest of what must be the same in all processes, or they would compile different
    programs."""
    content = [config, [version(name) for name in PACKAGES], jax.device_count()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def accept_followers(host: str, own_digest: str) -> dict[int, tuple[Connection, Connection]]:
    """Returns the connections to all followers, in the first process, at its address `host`: of the
    log, and of conversations.

    The address and a secret reach them through jax's own connections. Followers must run the same
    programs: ValueError if the digest of one of them differs.
    """
    with socket.create_server((host, 0), backlog=jax.process_count()) as server:
        server.settimeout(CONNECT_S)
        token = secrets.token_hex(TOKEN_BYTES)
        _broadcast(json.dumps([host, server.getsockname()[1], token]))
        found: dict[tuple[int, str], Connection] = {}
        while len(found) < 2 * (jax.process_count() - 1):
            connected, address = server.accept()
            connection = Connection(connected)
            try:
                hello = connection.receive_hello()
            except Gone:
                hello = {}
            if not hmac.compare_digest(str(hello.get("token")).encode(), token.encode()):
                connection.close()
                continue
            process = int(hello["process"])
            if hello["digest"] != own_digest:
                text = (
                    f"process {process} at {address[0]} has another config, other versions of "
                    f"{', '.join(PACKAGES)}, or sees another number of devices: start all "
                    "processes with the same line, on machines that were installed alike"
                )
                connection.send({"kind": "refused", "why": text})
                raise ValueError(text)
            connection.send({"kind": "welcome"})
            found[process, hello["for"]] = connection
    return {
        process: (found[process, LOG], found[process, CONVERSATIONS])
        for process in range(1, jax.process_count())
    }


def connect_to_leader(own_digest: str) -> tuple[Connection, Connection, str]:
    """Returns the connections of a follower, of the log and of conversations, and this machine's
    address as the others see it. ValueError if the leader refuses them."""
    host, port, token = json.loads(_broadcast(""))
    hello = {"token": token, "process": jax.process_index(), "digest": own_digest}
    found = []
    for purpose in (LOG, CONVERSATIONS):
        connected = socket.create_connection((host, port), timeout=CONNECT_S)
        address = connected.getsockname()[0]
        connection = Connection(connected)
        found.append(connection)
        try:
            connection.send(hello | {"for": purpose})
            answer, _ = connection.receive()
        except Gone as error:
            raise ValueError(f"the first process of this run refused us: {error}") from None
        if answer["kind"] != "welcome":
            raise ValueError(answer["why"])
    return *found, address


def own_address(coordinator: str) -> str:
    """Returns the address at which the other processes of a run reach this one, which is the first:
    the coordinator's, or, where a cluster knows it, that of this machine's name.

    ValueError if other machines cannot reach it.
    """
    host = coordinator.rpartition(":")[0]
    if not host:
        return socket.gethostbyname(socket.gethostname())
    address = socket.gethostbyname(host)
    if address.startswith("127.") and host not in ("127.0.0.1", "localhost"):  # as Debian has it
        raise ValueError(
            f"--coordinator={coordinator}: here {host} is {address}, which no other machine can "
            "reach: give this machine's address instead of its name"
        )
    return address


def served_at(own: str, cluster_address: str) -> str:
    """Returns where a follower serves the rollout workers. own: its address as the first process
    sees it, which is loopback on the same machine, where other nodes could not reach it.

    cluster_address: of the first process's machine, as other nodes reach it; empty if there are
    none.
    """
    is_beside_the_first = ipaddress.ip_address(own).is_loopback
    return cluster_address if cluster_address and is_beside_the_first else own


def _broadcast(text: str) -> str:
    """`text` of the first process, in all of them."""
    own = np.zeros(ADDRESS_BYTES, np.uint8)
    data = text.encode()
    own[: len(data)] = list(data)
    told = _interruptible(multihost_utils.broadcast_one_to_all, own)
    return bytes(told).rstrip(b"\0").decode()
