"""Sandboxes as Docker containers, through the daemon's API."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import posixpath
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping
from typing import Any

import docker
from docker.errors import ImageNotFound, NotFound
from docker.types import Mount

from ale_jax.sandbox import agent_program, cgroups, host_ids, toolkit
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.async_sandbox import PROGRAM, AsyncSandbox
from ale_jax.sandbox.blocking import StartsBlocking
from ale_jax.sandbox.booting import Surroundings, boot, files_limit, log_denial
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.datasets import NO_DATASETS, Datasets
from ale_jax.sandbox.docker_container import (
    TARGET,
    TROUBLE,
    Accounts,
    DockerMachine,
    Plan,
    RunnerSockets,
    remove_abandoned,
)
from ale_jax.sandbox.egress.proxy import Record
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.hub import daemon
from ale_jax.sandbox.hub.daemon import DEADLINE, OWNER, labels_of, remove_container
from ale_jax.sandbox.hub.hub import Hub
from ale_jax.sandbox.link import DockerLink
from ale_jax.sandbox.renewal import RenewableSandbox, whole
from ale_jax.sandbox.spec import ETC, ROOT_CAPABILITIES, SHM, TMP, WORK, SandboxSpec

API_S = 30.0
# Age at which a sandbox counts as abandoned if its owner cannot be checked from here (another host
# that uses the same daemon).
LIFE_S = 24 * 3600
# Nothing but the directories of the spec may be written to, or what is left there would outlive a
# reset. /dev/shm and /dev/pts are mounts of their own. The first line is Docker's default.
READ_ONLY = (
    *("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),
    *("/dev", "/dev/mqueue", "/sys/fs/cgroup"),
)
# For user root: modes and owners of files in /proc, such as /proc/version, are those of the whole
# host, and root of a container without a user namespace may change them.
PROC = "/proc"
SYSCTLS = {
    # A closed connection leaves nothing, where it would hold its port for a minute. On a loopback,
    # no packet comes late, which is what the kernel waits for.
    "net.ipv4.tcp_max_tw_buckets": "0",
    # Nor does what it learned of the way to an address.
    "net.ipv4.tcp_no_metrics_save": "1",
}
MOUNTED_IN_ETC = ("hosts", "hostname", "resolv.conf")  # by the daemon, over the image's files
# What the runner needs to start processes as the agent and to end them. It drops them in every
# process that it starts.
RUNNER_CAPABILITIES = ("SETUID", "SETGID", "SETPCAP", "KILL")

log = logging.getLogger(__name__)


class DockerRuntime(StartsBlocking):
    """Starts containers on the daemon that the environment names (DOCKER_HOST)."""

    name = "docker"

    def __init__(
        self, spec: SandboxSpec, uplink: Uplink = DIRECT, datasets: Datasets = NO_DATASETS
    ):
        """Builds the image of `spec` if it is missing or does not match its recipe. uplink: how
        what is permitted leaves this host. datasets: that it offers.

        Errors: SandboxStartError; ValueError for an invalid recipe.
        """
        _refuse_unenforceable(spec)
        if reason := _daemon_trouble():
            raise SandboxStartError(f"docker is not usable: {reason}")
        Hub().ensure(spec.image)
        self._api = docker.from_env(timeout=int(API_S)).api
        self._uplink, self._datasets = uplink, datasets
        self._owner, self._accounts = Owner.current(), Accounts(self._api)
        daemon_info = self._api.info()
        self._oci_runtimes, self._cpus = set(daemon_info.get("Runtimes", {})), daemon_info["NCPU"]
        try:
            self._toolkit = toolkit.ensure_volume(self._api, spec.image)
            self._sockets = RunnerSockets(self._api, spec.image, self._owner)
            self._accounts.learn(spec.image)
        except (*TROUBLE, ValueError, subprocess.SubprocessError) as error:
            raise SandboxStartError(f"docker: cannot make the runner's mounts: {error}") from error
        self._hierarchy, memory = None, "cgroup"
        try:
            if os.getuid() != 0:
                raise cgroups.CgroupsUnavailable("only root may move the runner to another")
            self._hierarchy = cgroups.find()
        except cgroups.CgroupsUnavailable as reason:
            memory = f"cgroup, which the agent shares with the runner ({reason})"
        self.capabilities = {"memory": memory, "pids": "cgroup", "files": "tmpfs size"}

    async def prepare(self, spec: SandboxSpec) -> None:
        """Builds the image of `spec` if needed, which may take minutes. Errors: as `__init__`."""
        _refuse_unenforceable(spec)
        self._datasets.of(spec)
        await asyncio.to_thread(Hub().ensure, spec.image)

    async def launch(
        self,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        record: Record = log_denial,
        snapshot: bytes = b"",
    ) -> RenewableSandbox:
        """Returns a working sandbox. record: called for each connection that is refused. snapshot:
        always empty, as there is no root on disk.

        Errors: SandboxStartError.
        """
        _refuse_unenforceable(spec)
        if spec.runtime not in self._oci_runtimes:
            known = ", ".join(sorted(self._oci_runtimes))
            raise SandboxStartError(
                f"docker has no runtime {spec.runtime!r} (only {known}): add it to the daemon"
            )

        def begin(spec: SandboxSpec) -> Coroutine[Any, Any, AsyncSandbox]:
            return whole(self._begin(spec, labels, record))

        return RenewableSandbox(await begin(spec), begin)

    async def _begin(
        self, spec: SandboxSpec, labels: Mapping[str, str], record: Record
    ) -> AsyncSandbox:
        link = DockerLink()
        async with self._sockets.offer(link) as mounts:
            # Root's id cannot be another, and a daemon elsewhere has no file of this host.
            claims = mounts and os.getuid() == 0 and spec.user != "root"
            user = host_ids.claim() if claims else None
            plan = Plan(spec, labels, mounts, user)
            try:
                machine, contents = await self._create(plan, link)
            except ImageNotFound as error:
                raise Hub().missing(spec.image) from error
            except TROUBLE as error:
                raise SandboxStartError(f"docker could not start a container: {error}") from error
            surroundings = Surroundings(
                uid=plan.uid,
                contents=contents,
                substitutes=toolkit.PROGRAM_COMMANDS,
                socket=TARGET if mounts else "",
            )
            return await boot(machine, spec, surroundings, record, self._uplink)

    async def forget(self, snapshot: bytes) -> None:
        """Does nothing: a snapshot is all there is."""

    def reap(self) -> int:
        """Removes the containers whose owner is dead; returns their number.

        The daemon finishes the creation that a killed owner has asked for: a container that appears
        only after this sweep waits for the next one.
        """
        remove_abandoned()
        found = self._api.containers(all=True, filters={"label": [OWNER, DEADLINE]})
        dead = [each["Id"] for each in found if _abandoned(each["Labels"])]
        for container in dead:
            remove_container(self._api, container)
        return len(dead)

    async def _create(self, plan: Plan, link: DockerLink) -> tuple[DockerMachine, dict[str, bytes]]:
        """Returns a started machine, and the image's contents of the writable directories."""
        async with self._created(plan) as (container, attached):
            contents = await asyncio.to_thread(self._contents, container, plan.spec)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: link, attached._sock)
            await asyncio.to_thread(self._api.start, container)
            if plan.mounts:
                link.gates = await asyncio.to_thread(self._take_runner_out, container)
        return DockerMachine(self._api, container, attached, link, plan), contents

    @contextlib.asynccontextmanager
    async def _created(self, plan: Plan) -> AsyncIterator[tuple[str, Any]]:
        """Yields a container, which must be started within the block, and a connection to its
        streams. Removes it if the block fails."""
        async with contextlib.AsyncExitStack() as failed, contextlib.AsyncExitStack() as held:
            failed.callback(plan.release)
            mounts = plan.mounts + _shown(self._datasets.of(plan.spec))
            if plan.user:
                await asyncio.to_thread(self._accounts.learn, plan.spec.image)
                offer = self._accounts.offer(plan.spec.image, plan.uid)
                mounts = mounts + held.enter_context(offer)
            container, attached = await asyncio.to_thread(self._create_attached, plan, mounts)
            failed.push_async_callback(asyncio.to_thread, remove_container, self._api, container)
            yield container, attached
            failed.pop_all()

    def _take_runner_out(self, container: str) -> list[int]:
        """Moves the runner, the only process as yet, out of the container's control group, where it
        could be killed for what the agent allocates. Returns what the runner writes to: its score,
        and the files through which the agent's processes enter the group; none if this host cannot
        do that."""
        if self._hierarchy is None:
            return []
        pid = self._api.inspect_container(container)["State"]["Pid"]
        group = self._hierarchy.of(pid)
        if group is None or any(container not in str(path) for path in group.directories):
            log.warning("%s shares its control group with its runner", container[:12])
            return []  # the daemon's processes are not visible from here
        score = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        gates = [score, *group.open_gates()]
        self._hierarchy.adopt(pid)
        return gates

    def _contents(self, container: str, spec: SandboxSpec) -> dict[str, bytes]:
        """Tar archives by directory, read before the start, which mounts tmpfs over them."""
        contents = {}
        for path in spec.writable:
            with contextlib.suppress(NotFound):
                parts, _ = self._api.get_archive(container, f"{path}/.")
                contents[path] = _join_at_most(parts, spec.files_mb << 20, path)
        if ETC in contents:
            contents[ETC] = _without(contents[ETC], MOUNTED_IN_ETC)
        return contents

    def _create_attached(self, plan: Plan, mounts: list[Mount]) -> tuple[str, Any]:
        """Creates a container without starting it; returns it and a connection to its streams."""
        ours = labels_of(self._owner, LIFE_S)
        container = self._api.create_container(
            plan.spec.image,
            entrypoint=[],
            command=toolkit.python("-s", "-S", "-P", "-c", PROGRAM),
            environment=toolkit.environment(),
            user="0:0",
            hostname="sandbox",
            working_dir="/work",
            stdin_open=True,  # closes when this process ends, which ends the runner
            labels={f"ale.{key}": value for key, value in plan.labels.items()} | ours,
            host_config=self._api.create_host_config(
                binds=[toolkit.volume_binding(self._toolkit)],
                mounts=mounts,
                **_host_config(plan, self._cpus),
            )
            | {"ReadonlyPaths": [*READ_ONLY, *([PROC] if plan.spec.user == "root" else [])]},
        )["Id"]
        try:
            streams = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}
            return container, self._api.attach_socket(container, params=streams)
        except TROUBLE:
            remove_container(self._api, container)
            raise


def _shown(directories: Mapping[str, str]) -> list[Mount]:
    """directories: the daemon's path for each that a container sees read-only."""
    mounts = [Mount(to, path, type="bind", read_only=True) for to, path in directories.items()]
    for mount in mounts:
        # A mount further down would be writable, as runc makes only the topmost one read-only.
        mount["BindOptions"] = {"NonRecursive": True}
    return mounts


def _refuse_unenforceable(spec: SandboxSpec) -> None:
    if spec.disk_mb:
        raise SandboxStartError(
            f"docker cannot limit a root on disk to {spec.disk_mb} MB: use the runtime bubblewrap, "
            "which runs the same images, or leave disk_mb at 0"
        )
    if spec.ale_agent:
        raise SandboxStartError(agent_program.BELONGS_IN_IMAGE)


def _host_config(plan: Plan, cpus: int) -> dict:
    """cpus: number of CPUs of the daemon, which refuses a limit above it."""
    spec = plan.spec
    tmpfs = f"rw,exec,nosuid,nodev,{files_limit(spec)},uid={plan.uid},gid={plan.uid}"
    writable = dict.fromkeys((WORK, *spec.writable), f"{tmpfs},mode=0755")
    return {
        "auto_remove": True,
        "cap_add": [*RUNNER_CAPABILITIES, *(ROOT_CAPABILITIES if spec.user == "root" else ())],
        "cap_drop": ["ALL"],
        # Docker's init holds files open that an agent with user root could write to.
        "init": False,
        "ipc_mode": "none",  # no /dev/shm of Docker's, which a reset could not empty
        "log_config": {"type": "none"},
        "mem_limit": f"{spec.memory_mb}m",
        "memswap_limit": f"{spec.memory_mb}m",
        "network_mode": "none",
        "pids_limit": spec.pids,
        "read_only": True,
        "security_opt": ["no-new-privileges"],
        "sysctls": SYSCTLS,
        "tmpfs": writable | dict.fromkeys((TMP, SHM), f"{tmpfs},mode=1777"),
        **({"nano_cpus": int(min(spec.cpus, cpus) * 1e9)} if spec.cpus else {}),
        **({"runtime": spec.runtime} if spec.runtime != "runc" else {}),
    }


def _join_at_most(parts: Iterable[bytes], max_bytes: int, path: str) -> bytes:
    content = bytearray()
    for part in parts:
        content += part
        if len(content) > 2 * max_bytes:  # an archive also has headers and padding
            raise OSError(f"the image has more in {path} than the {max_bytes} bytes of files_mb")
    return bytes(content)


def _without(archive: bytes, names: Collection[str]) -> bytes:
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as full,
        tarfile.open(fileobj=packed, mode="w") as rest,
    ):
        for member in full:
            if posixpath.normpath(member.name) not in names:
                rest.addfile(member, full.extractfile(member) if member.isreg() else None)
    return packed.getvalue()


def probe(spec: SandboxSpec) -> str | None:
    """Why Docker cannot run `spec` now, with the command to fix it; None if it can."""
    if spec.disk_mb:
        return "it cannot limit a root on disk; use bubblewrap"
    if spec.ale_agent:
        return agent_program.BELONGS_IN_IMAGE
    if reason := _daemon_trouble():
        return reason
    with daemon.connect() as api:
        if daemon.find(api, spec.image) is None:
            if spec.image == SandboxSpec.image:
                return f"image {spec.image!r} is missing; type: make runtimes"
            return str(Hub().missing(spec.image))
    return None


def _daemon_trouble() -> str | None:
    try:
        with contextlib.closing(docker.from_env(timeout=int(API_S))) as client:
            info = client.info()
    except TROUBLE as error:
        return f"no daemon answers ({_first_line(error)}); type: make runtimes"
    limits = [
        "MemoryLimit",
        "PidsLimit",
        "CpuCfsQuota",
        *(["SwapLimit"] if cgroups.host_swaps() else []),
    ]
    missing = [name for name in limits if not info.get(name)]
    if missing:
        return f"the daemon cannot enforce {' and '.join(missing)}; type: docker info"
    return None


def _abandoned(labels: Mapping[str, str]) -> bool:
    try:
        owner, deadline = Owner.parse(labels[OWNER]), int(labels[DEADLINE])
    except ValueError:
        return False  # not written by this package
    return owner.is_dead() if owner.is_here() else time.time() > deadline


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
