"""The order of the checks. One that fails does not keep the next from being made, unless this one
has nothing to look at then, which is said."""

from __future__ import annotations

import time

import jax

from ale_jax.config.rollout import RAY
from ale_jax.config.run import RunConfig
from ale_jax.errors import EXIT_FAILED
from ale_jax.system.doctor import peers
from ale_jax.system.doctor.devices import check_grouped_product, check_mesh
from ale_jax.system.doctor.findings import Finding, Report, fail, ok, warn
from ale_jax.system.doctor.machine import (
    RunFolder,
    check_allocator,
    check_compilation_cache,
    check_device_memory,
    check_folder,
    check_host_memory,
    check_open_files,
    check_room,
    check_run,
    check_sandboxes,
    check_shared_memory,
    checkpoint_bytes,
    host_needs,
)
from ale_jax.system.doctor.peers import Clock
from ale_jax.system.doctor.roll_call import WAIT_S, check_coordinator
from ale_jax.system.hosts.connection import Connection
from ale_jax.system.hosts.start import HostOptions, disconnect, initialize


def examine(
    config: RunConfig,
    host: HostOptions,
    folder: RunFolder | None,
    report: Report,
    clock: Clock = time.time,
) -> int:
    """Makes all checks of this process; returns its exit code, 2 if any process found a failure.

    folder: of the run; None: not checked. report: with what was found before jax was imported.
    """
    if not _meet(host, report):
        report.add(warn("devices", "not checked", "first let the processes start jax together"))
        _examine_machine(config, folder, report, host.process == 0)
        report.conclude()
        return EXIT_FAILED
    connected = _connect(host, report)
    leads = jax.process_index() == 0
    _examine_devices(config, report, leads)
    _examine_machine(config, folder, report, leads)
    code = _compare(config, connected, report, clock)
    report.conclude()
    return code


def _meet(host: HostOptions, report: Report) -> bool:
    """Whether jax runs, on all processes of the run together."""
    if host.processes > 1:
        report.say(f"waiting up to {WAIT_S:g} s for all {host.processes} processes")
        roll = host.coordinator, host.processes, host.process
        if not report.check("coordinator", check_coordinator, *roll):
            return False
    return report.check("processes", _join, host)


def _join(host: HostOptions) -> Finding:
    """Errors: ConnectionError."""
    try:
        initialize(host)
        count, own = jax.process_count(), jax.local_device_count()
    except RuntimeError as error:  # jax has no class of its own for this
        raise ConnectionError(f"jax does not start: {error}") from error
    return ok(
        "processes", f"{count}, this one is number {jax.process_index()}; devices of its own: {own}"
    )


def _connect(host: HostOptions, report: Report) -> dict[int, Connection] | None:
    """The connections; None if the processes could not connect."""
    report.process = jax.process_index()
    connected: dict[int, Connection] = {}

    def connect() -> Finding:
        if jax.process_count() == 1:
            return ok("peers", "none, as there is one process")
        connected.update(peers.connect(host.coordinator))
        return ok("peers", "connected")

    return connected if report.check("peers", connect) else None


def _examine_devices(config: RunConfig, report: Report, leads: bool) -> None:
    kind, count = jax.devices()[0].device_kind, jax.device_count()
    if report.add(check_mesh(config, kind, count)):
        report.check("device memory", check_device_memory, config)
        report.check("host memory", lambda: check_host_memory(host_needs(config, leads)))
    else:
        report.add(warn("device memory", "not checked", "first mend the devices or the mesh"))
    report.check("grouped product", check_grouped_product)


def _examine_machine(
    config: RunConfig, folder: RunFolder | None, report: Report, leads: bool
) -> None:
    """leads: whether this is the first process, which has the sandboxes and Ray."""
    rollout, keep = config.rollout, config.checkpoint.keep
    report.check("allocator", check_allocator)
    report.check("open files", check_open_files, rollout.actors * rollout.episodes_per_actor)
    if folder is None:
        report.add(warn("workdir", "not checked", "add --workdir=DIR, the folder of the run"))
    else:
        remedy = "choose another --workdir, or make this one writable"
        can_write = report.check("workdir", check_folder, "workdir", folder.path, remedy)
        report.check("disk", lambda: check_room(folder.path, keep, checkpoint_bytes(config)))
        if leads and can_write:
            report.check("run", check_run, folder, config)
        elif leads:
            report.add(warn("run", "not checked", "first mend the folder"))
    report.check("compilation cache", check_compilation_cache, config)
    if leads:
        if rollout.workers == RAY:
            report.check("shared memory", check_shared_memory)
        report.check("sandboxes", check_sandboxes, config)


def _compare(
    config: RunConfig, connected: dict[int, Connection] | None, report: Report, clock: Clock
) -> int:
    """Compares this process with all others; returns the exit code."""
    if connected is None:
        return EXIT_FAILED
    if jax.process_index():
        return _follow(config, connected[0], report, clock)
    if connected:
        report.check("peers", peers.compare, connected, peers.own_facts(config), clock)
    adds_up = jax.device_count() == 1 or report.check("all-reduce", peers.add_up, connected)
    code = EXIT_FAILED if report.failed else 0
    peers.end(connected, code, adds_up)
    if adds_up:  # all processes are there, so that none waits in vain
        disconnect()
    return code


def _follow(config: RunConfig, leader: Connection, report: Report, clock: Clock) -> int:
    try:
        code, adds_up = peers.follow(leader, peers.own_facts(config), report, clock)
    except OSError as error:
        report.add(fail("peers", f"the first process is gone ({error})"))
        return EXIT_FAILED
    if adds_up:
        disconnect()
    return code
