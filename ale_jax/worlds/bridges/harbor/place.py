"""The sandbox of a task: its spec, and what is put into it before a policy acts."""

from __future__ import annotations

import dataclasses
import math
import posixpath
import shlex
import time
from collections.abc import Iterator

from ale_jax.sandbox.api import JudgedSandbox, ProcessResult, SandboxStartError
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.spec import SHM, TMP, WORK, SandboxSpec
from ale_jax.sandbox.verify.verifier import trusted_path
from ale_jax.worlds.bridges.harbor.records import (
    ALLOWLIST,
    PUBLIC,
    PUBLISHED,
    REPORT,
    SETUP,
    SOLUTION,
    TESTS,
    HarborTask,
    Health,
    Phase,
)
from ale_jax.worlds.bridges.harbor.trees import Tree, below, packed

OPEN = EgressPolicy("open")
LONGEST_S = 3600.0  # of a command, where nobody says
LAY_S = 120.0


@dataclasses.dataclass(frozen=True)
class Room:
    """What a task gets that it does not ask for.

    files_mb: size of each of its directories. memory_mb: if it does not say. writable: further
    directories that it may change. command_seconds: that one command of the policy may take; 0 for
    as long as all may take together.
    """

    files_mb: int = 64
    memory_mb: int = 1024
    writable: tuple[str, ...] = ()
    command_seconds: float = 0.0


def spec_of(task: HarborTask, run: SandboxSpec, room: Room) -> SandboxSpec:
    """Returns the sandbox of a task. run: of the run, which says image, network and runtime.
    ValueError, with the task, if there is no such sandbox."""
    place = task.place
    try:
        writable = tuple(_writable(task, room))
        trusted_path(writable)  # refuses what would let a policy change the programs that judge
        files_mb = min(room.files_mb, place.storage_mb or room.files_mb)
        seconds = max(phase.seconds for phase in task.phases)
        longest = LONGEST_S if math.isinf(seconds) else seconds
        return SandboxSpec(
            image=place.image or run.image,
            runtime=run.runtime,
            user=place.user,
            cpus=place.cpus,
            # A task's files are on a disk elsewhere, and do not count as its memory.
            memory_mb=(place.memory_mb or room.memory_mb) + files_mb * (len(writable) + 3),
            pids=512,
            files_mb=files_mb,
            writable=writable,
            env=tuple(place.layout.env.items()),
            network=_network(task, run.network),
            command_seconds=room.command_seconds or longest,
        )
    except ValueError as error:
        raise ValueError(f"task {task.name}: {error}") from None


def _network(task: HarborTask, allowed: EgressPolicy) -> EgressPolicy:
    """Returns the widest policy of a task's phases: a sandbox without a network gets none later."""
    reaches = [each for phase in task.phases for each in (phase.reach, phase.check.reach)]
    policies = [reach.policy(allowed) for reach in reaches]
    if any(reach.mode == PUBLIC for reach in reaches):
        return allowed
    hosts = dict.fromkeys(host for policy in policies for host in policy.allow)
    return EgressPolicy(ALLOWLIST, tuple(hosts)) if hosts else EgressPolicy()


def _writable(task: HarborTask, room: Room) -> Iterator[str]:
    """Yields the directories that a task changes, each once, and none below another."""
    place = task.place
    wanted = {place.layout.workdir, TESTS, REPORT, PUBLISHED, *room.writable}
    wanted |= {posixpath.dirname(path) for path in place.layout.files}
    for phase in task.phases:
        check = phase.check
        wanted |= {SOLUTION} if phase.solution is not None else set()
        wanted |= {check.workdir} if check.layout else set()
        wanted |= {posixpath.dirname(path) for path in (check.layout.files if check.layout else ())}
        for source in (each.source for each in check.artifacts):
            is_file = bool(posixpath.splitext(source)[1])
            wanted.add(posixpath.dirname(source) if is_file else source)
    given = (WORK, TMP, SHM)
    for path in sorted(wanted):
        others = (*given, *(wanted - {path}))
        if path not in given and not any(path.startswith(f"{each}/") for each in others):
            yield path


def prepare(sandbox: JudgedSandbox, task: HarborTask, number: int) -> str:
    """Brings a sandbox into the state in which the phase `number` begins where nobody has done
    anything before. Returns what is wrong with it, as `enter`. SandboxStartError if it does not
    take its files, or never becomes healthy."""
    sandbox.reset()
    _connect(sandbox, task.phases[0].reach.policy(sandbox.spec.network))
    lay(sandbox, task.place.layout.files)
    if fault := _sick(sandbox, task, task.place.health):
        raise SandboxStartError(f"task {task.name}: environment.healthcheck {fault}")
    faults = (enter(sandbox, task, phase) for phase in task.phases[: number + 1])
    return next(filter(None, faults), "")


_proven: set[str] = set()  # images of verifiers of which this process has had a machine


def prove_images(sandbox: JudgedSandbox, task: HarborTask) -> None:
    """Starts a machine of each image of a verifier once, so that one that is not there is missed
    before a policy has played. SandboxStartError, with the field, if it is."""
    for image in {phase.check.image for phase in task.phases} - _proven - {""}:
        try:
            sandbox.renew(image)
        except SandboxStartError as error:
            field = "verifier.environment.docker_image"
            raise SandboxStartError(f"task {task.name}: {field} {image!r}: {error}") from error
        _proven.add(image)


def enter(sandbox: JudgedSandbox, task: HarborTask, phase: Phase) -> str:
    """Prepares a phase in the state that the one before has left. Returns what is wrong with that
    state, for which the policy may be the reason; "" if nothing is."""
    _connect(sandbox, phase.reach.policy(sandbox.spec.network))
    workdir = task.place.layout.workdir
    lay(sandbox, below(workdir, phase.prepared))
    if SETUP in phase.prepared:
        done = _run(sandbox, f"bash {shlex.quote(f'{workdir}/{SETUP}')}", LAY_S, workdir)
        if done.exit_code:
            return f"steps/{phase.name}/workdir/{SETUP} ended with {_words(done)}"
    if fault := _sick(sandbox, task, phase.health):
        return f"steps.healthcheck of {phase.name} {fault}"
    sandbox.run(f"cd {shlex.quote(workdir)}")
    return ""


def lay(sandbox: JudgedSandbox, files: Tree) -> None:
    """Writes files at their absolute paths. SandboxStartError if they do not fit."""
    if files:
        unpack(sandbox, packed(files))


def unpack(sandbox: JudgedSandbox, archive: bytes) -> None:
    """Unpacks an archive of ours at /. SandboxStartError if that fails."""
    argv = ["tar", "-x", "-f", "-", "-C", "/", "--no-same-owner", "--no-overwrite-dir"]
    env = {"PATH": trusted_path(sandbox.spec.writable)}
    done = sandbox.exec(argv, LAY_S, stdin=archive, cwd="/", env=env)
    if done.exit_code:
        raise SandboxStartError(f"the sandbox does not take its files: {_words(done)}")


def _connect(sandbox: JudgedSandbox, policy: EgressPolicy) -> None:
    if sandbox.network != policy:
        sandbox.set_network(policy)


def _sick(sandbox: JudgedSandbox, task: HarborTask, health: Health | None) -> str:
    """Waits until a check of health succeeds. Returns its last words if it never does."""
    if health is None:
        return ""
    begun, failures = time.monotonic(), 0
    while True:
        is_early = time.monotonic() - begun < health.start_period
        done = _run(sandbox, health.command, health.timeout, task.place.layout.workdir)
        if done.exit_code == 0:
            return ""
        failures += not is_early
        if failures >= health.retries:
            return f"failed {failures} times: {_words(done)}"
        time.sleep(health.start_interval if is_early else health.interval)


def _run(sandbox: JudgedSandbox, command: str, seconds: float, workdir: str) -> ProcessResult:
    return sandbox.exec(command, seconds, cwd=workdir)


def _words(done: ProcessResult) -> str:
    return f"exit code {done.exit_code}: {(done.stderr.strip() or done.stdout.strip())[-200:]!r}"
