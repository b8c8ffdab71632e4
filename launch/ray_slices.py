#!/usr/bin/env python3
"""Trains on TPU slices of a Ray cluster: one process on each of their hosts, with the same line.

  .venv/bin/python launch/ray_slices.py --topology=4x4 --accelerator=TPU-V6E [--slices=2]
      [--address=auto] [--port=8476] [--restarts=20] [--dry-run] -- ARGUMENTS...

on a machine that is a node of the cluster. The repository is installed at the same path on all
hosts, and the folder of the run is one that all of them see. The program reserves the slices, and
waits for them if need be. The first worker of the first slice is the coordinator; its output is
shown. --dry-run prints the lines, and needs no cluster.

Ctrl-C or SIGTERM asks process 0 to save and to end the others; a second one asks each of them. When
one process has ended, the others get 60 seconds to end by themselves, and then SIGTERM. They also
get it when this program ends, however that happens. It holds nothing that the run needs: the same
line resumes.

If a host is lost, or is told to end, or a process is killed, slices are reserved again and the same
line runs on them, at most --restarts times.

Exit code: that of process 0, or 2 if it was lost; 130 if it was still waiting for slices; 1 if the
cluster cannot be joined, or Ray's head was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import math
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import ray
from ray._private.accelerators import TPUAcceleratorManager
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.tpu import (
    SlicePlacementGroup,
    get_tpu_version_from_type,
    get_tpu_worker_resources,
    slice_placement_group,
)
from ray_host import FAILED, LOST, POLL_S, STOPPED, Host, Job, begins_again, is_lost

ROOT = Path(__file__).resolve().parent.parent
WORKER_LABEL = "ray.io/tpu-worker-id"
HEAD_S = 60.0  # for the first host of another slice to be free
PLACE_S = 60.0  # for the other hosts of that slice
PATIENCE_S = 60.0  # for the other processes to end by themselves, once one has
ANSWER_S = 5.0  # for Ray's head to accept a connection
TAIL_BYTES = 2000


def hosts_of_slice(topology: str, accelerator: str) -> int:
    """How many there are; ValueError if there is no such slice."""
    version = get_tpu_version_from_type(accelerator)
    if not TPUAcceleratorManager.is_valid_tpu_accelerator_topology(version, topology):
        raise ValueError(f"{version} has no slices of {topology}")
    return get_tpu_worker_resources(topology, version)[0]


def reserve(job: Job) -> list[SlicePlacementGroup]:
    """The slices of the job, until `release`. Waits until they are there."""
    print(f"ray_slices: waiting for {job.slices} x {job.topology}", flush=True)
    while True:
        found, broken = look_for_slices(job)
        release(broken)
        if len(found) == job.slices:
            return found
        release(found)  # or two programs could wait for what the other one holds


def look_for_slices(job: Job) -> tuple[list[SlicePlacementGroup], list[SlicePlacementGroup]]:
    """At most as many whole slices as the job needs, and those that were not whole in time.

    Ray chooses a slice by its first host, and does not ask whether the others are there. It chooses
    another one as long as that host is taken.
    """
    labels = [{WORKER_LABEL: str(worker)} for worker in range(job.hosts)]
    found, broken = [], []
    while len(found) < job.slices:
        try:
            one = slice_placement_group(
                job.topology,
                job.accelerator,
                strategy="STRICT_SPREAD",
                bundle_label_selector=labels if job.hosts > 1 else None,
                head_reservation_timeout_s=HEAD_S,
            )
        except TimeoutError:
            break
        if one.placement_group.wait(PLACE_S):
            found.append(one)
            continue
        broken.append(one)
        if job.hosts == 1:  # it had the choice of all hosts
            break
    return found, broken


def release(slices: Sequence[SlicePlacementGroup]) -> None:
    """Gives them back, and ends the actors on them."""
    for one in slices:
        one.shutdown()


@dataclasses.dataclass
class Process:
    """A process that was started.

    place: for a person. node: Ray's id of its host. code: None while it runs. read: how many bytes
    of its output are known, and tail: the last ones.
    """

    number: int
    place: str
    node: str
    actor: ActorHandle
    code: int | None = None
    read: int = 0
    tail: bytes = b""

    def take(self, look: ray.ObjectRef) -> None:
        """Learns what a look at it has found."""
        try:
            output, code = ray.get(look)
        except ActorUnavailableError:
            return  # the next look tells whether the actor still exists
        except RayActorError as error:
            self.code = LOST
            self.tail += f"\n{error}".encode()
            return
        self.read += len(output)
        self.tail = (self.tail + output)[-TAIL_BYTES:]
        if self.number == 0:
            sys.stdout.buffer.write(output)
            sys.stdout.flush()
        if not output:  # all of it is known
            self.code = code


def start(job: Job, slices: Sequence[SlicePlacementGroup]) -> list[Process]:
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    bundles = []
    for one in slices:
        nodes = placement_group_table(one.placement_group)["bundles_to_node_id"]
        bundles += [(one, worker, nodes[worker]) for worker in range(job.hosts)]
    # A node that has just been lost may have no address. Its actor is then lost, too.
    at = [addresses.get(node, "nowhere") for *_, node in bundles]
    processes = []
    for number, (one, worker, node) in enumerate(bundles):
        actor = ray.remote(Host).options(
            num_cpus=0,
            resources={"TPU": one.bundle_resources["TPU"]},
            scheduling_strategy=PlacementGroupSchedulingStrategy(one.placement_group, worker),
        )
        words = job.line(number, at[0]), job.multislice(number, at[0])
        place = f"{job.place(number)}, {at[number]}"
        processes.append(Process(number, place, node, actor.remote(str(ROOT), *words)))
    return processes


def watch(processes: Sequence[Process], signals: Sequence[int]) -> None:
    """Shows the output of the first until all have ended. signals: so far, to be passed on."""
    looks: dict[ray.ObjectRef, Process] = {}
    stopped: set[int] = set()
    deadline = math.inf
    while running := [each for each in processes if each.code is None]:
        asked = {each.number for each in looks.values()}
        looks |= {p.actor.look.remote(p.read): p for p in running if p.number not in asked}
        ready, _ = ray.wait([*looks], num_returns=len(looks), timeout=POLL_S)
        for look in ready:
            looks.pop(look).take(look)
        if len(running) < len(processes):
            deadline = min(deadline, time.monotonic() + PATIENCE_S)
        to_stop: Sequence[Process] = ()
        if len(signals) > 1 or time.monotonic() > deadline:
            to_stop = running
        elif not stopped and (signals or will_be_lost(running)):
            to_stop = running[:1]  # it tells the others
        for process in to_stop:
            if process.number not in stopped:
                stopped.add(process.number)
                process.actor.stop.remote()


def will_be_lost(processes: Sequence[Process]) -> bool:
    """Whether a host was told to end, as before a preemption: Ray drains its node meanwhile."""
    draining = ray._private.state.state.get_draining_nodes()
    return any(process.node in draining for process in processes)


def report(processes: Sequence[Process]) -> None:
    for each in processes:
        how = "was lost" if each.code == LOST else f"ended with {each.code}"
        print(f"ray_slices: process {each.number} ({each.place}) {how}; its last lines:")
        for line in each.tail.decode(errors="replace").splitlines()[-3:]:
            print(f"    {line}")
    sys.stdout.flush()


@contextlib.contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Those that ask this program to stop, in a list instead of as exceptions."""
    collected: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda n, _: collected.append(n)) for each in numbers}
    try:
        yield collected
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def train(job: Job, restarts: int) -> int:
    for attempt in range(restarts + 1):
        if attempt:
            print(f"ray_slices: restart {attempt} of at most {restarts}", flush=True)
        slices = reserve(job)
        with collected_signals() as signals:
            processes = start(job, slices)
            watch(processes, signals)
        release(slices)
        report(processes)
        codes = [each.code for each in processes]
        if signals or not begins_again(codes):
            break
    return FAILED if is_lost(codes[0]) else codes[0]


def join(address: str) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    host, _, port = address.rpartition(":")
    try:
        if host:  # Ray would try for minutes
            socket.create_connection((host, int(port)), ANSWER_S).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError) as error:
        sys.exit(
            f"ray_slices: cannot join the cluster at --address={address} ({error}): see whether it "
            "runs, with the same Python and Ray, and whether this machine is a node of it"
        )
    # Ray's own handler would end this program before it could pass the signal on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Job]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", required=True, help="of a slice, e.g. 4x4")
    parser.add_argument("--accelerator", required=True, help="Ray's name for it, e.g. TPU-V6E")
    parser.add_argument("--slices", type=int, default=1, help="1 unless given")
    parser.add_argument("--address", default="auto", help="HOST:PORT of Ray's head, or auto")
    parser.add_argument("--port", type=int, default=8476, help="of the coordinator")
    parser.add_argument("--restarts", type=int, default=20, help="at most; 20 unless given")
    parser.add_argument("--dry-run", action="store_true", help="print the lines, start nothing")
    end = [*arguments, "--"].index("--")
    options = parser.parse_args(arguments[:end])
    line = tuple(arguments[end + 1 :])
    if not line:
        parser.error("the arguments of training are missing: write them after `--`")
    if options.slices < 1:
        parser.error(f"--slices={options.slices} must be at least 1")
    if not re.fullmatch(r"auto|[^/]+:\d+", options.address):
        parser.error(f"--address={options.address} must be HOST:PORT of Ray's head, or auto")
    kind = options.topology, options.accelerator
    try:
        hosts = hosts_of_slice(*kind)
    except ValueError as error:
        parser.error(f"--topology={kind[0]} --accelerator={kind[1]}: {error}")
    return options, Job(*kind, options.slices, hosts, options.port, line)


def main(arguments: Sequence[str]) -> int:
    options, job = parse(arguments)
    if options.dry_run:
        for process in range(job.processes):
            variables = job.multislice(process, "ADDRESS").items()
            words = [f"{name}={value}" for name, value in variables]
            print(f"{job.place(process)}: {shlex.join(words + job.line(process, 'ADDRESS'))}")
        return 0
    join(options.address)
    try:
        return train(job, options.restarts)
    except KeyboardInterrupt:  # it was still waiting for slices
        return STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
