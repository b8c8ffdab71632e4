"""Sandboxes that use only Linux namespaces (bubblewrap), without a daemon or an image. They see the
host's own /usr and a small /etc of their own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ale_jax.sandbox import agent_program, cgroups, host_ids, toolkit
from ale_jax.sandbox.api import ImageMissing, SandboxError, SandboxStartError
from ale_jax.sandbox.async_sandbox import COMMAND, PROGRAM, AsyncSandbox
from ale_jax.sandbox.blocking import StartsBlocking
from ale_jax.sandbox.booting import (
    Surroundings,
    boot,
    limits_without_groups,
    log_denial,
    user_id,
)
from ale_jax.sandbox.bubblewrap_process import (
    BubblewrapMachine,
    Share,
    Started,
    etc_archive,
    etc_arguments,
    line_in_memory,
    line_on_disk,
    start,
)
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.datasets import NO_DATASETS, Datasets
from ale_jax.sandbox.disk import roots
from ale_jax.sandbox.disk.images import ImageFiles
from ale_jax.sandbox.disk.roots import HeldRoot, Roots
from ale_jax.sandbox.disk.store import Reference, is_reference
from ale_jax.sandbox.egress.proxy import Record
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.host_ids import HostId
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.renewal import RenewableSandbox, whole
from ale_jax.sandbox.spec import ETC, SandboxSpec

NEEDS = """
for name in python3 tar "$@"; do
    command -v "$name" > /dev/null || { echo "no $name in /usr; apt-get install $name"; exit 1; }
done
"""
PROBE_S = 5.0
log = logging.getLogger(__name__)

_serial = itertools.count()  # shared by all runtimes of this process, since cgroups are named by it


class BubblewrapRuntime(StartsBlocking):
    """Starts sandboxes as child processes, which do not outlive this process."""

    name = "bubblewrap"

    def __init__(
        self, spec: SandboxSpec, uplink: Uplink = DIRECT, datasets: Datasets = NO_DATASETS
    ):
        """uplink: how what is permitted leaves this host. datasets: that it offers. Errors:
        SandboxStartError."""
        if reason := probe(spec):
            raise SandboxStartError(f"bubblewrap is not usable: {reason}")
        self._owner, self._uplink, self._datasets = Owner.current(), uplink, datasets
        # Made with the first sandbox on disk.
        self._roots: Roots | None = None
        self._files: ImageFiles | None = None
        self._unpacked: dict[str, Path] = {}  # by image
        self._unpacking = threading.Lock()
        # The kernel kills a bwrap when the *thread* that started it ends (PR_SET_PDEATHSIG), so one
        # thread starts all of them and lives as long as this runtime and its machines.
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bubblewrap-spawner")
        try:
            self._hierarchy = cgroups.find()
            self.capabilities = {"memory": "cgroup", "pids": "cgroup", "files": "tmpfs size"}
        except cgroups.CgroupsUnavailable as reason:
            self._hierarchy = None
            self.capabilities = {
                "memory": f"rlimit for each process, and the runner watches their sum ({reason})",
                "pids": "rlimit",
                "files": "tmpfs size",
            }

    async def prepare(self, spec: SandboxSpec) -> None:
        """Checks the spec and, for roots on disk, unpacks its image, which may take minutes.

        Errors: SandboxStartError.
        """
        self._refuse_unenforceable(spec)
        if spec.disk_mb:
            await asyncio.to_thread(self._unpack, spec)

    async def launch(
        self,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        record: Record = log_denial,
        snapshot: bytes = b"",
    ) -> RenewableSandbox:
        """Returns a working sandbox. record: called for each connection that is refused. snapshot:
        of a root on disk, with which it starts; empty: none.

        Errors: SandboxStartError.
        """
        if spec.disk_mb:
            return await self._launch_on_disk(spec, record, snapshot)
        assert not snapshot, "only a root on disk starts with a snapshot"

        async def begin(spec: SandboxSpec) -> AsyncSandbox:
            self._refuse_unenforceable(spec)
            started = await self._in_spawner(self._spawn_in_memory, spec)
            contents = {ETC: etc_archive(spec)} if ETC in spec.writable else {}
            return await self._boot(started, spec, record, contents=contents)

        def another(spec: SandboxSpec) -> Coroutine[Any, Any, AsyncSandbox]:
            return whole(begin(spec))

        return RenewableSandbox(await another(spec), another)

    async def forget(self, snapshot: bytes) -> None:
        """Frees what a snapshot holds on this host. Errors: SandboxError."""
        if is_reference(snapshot) and self._roots:
            copy, loop = Reference.parse(snapshot), asyncio.get_running_loop()
            await loop.run_in_executor(self._spawner, self._roots.forget, copy)

    def reap(self) -> int:
        """Removes cgroups that dead owners left behind; their processes died with the owner."""
        return self._hierarchy.reap() if self._hierarchy else 0

    async def _launch_on_disk(
        self, spec: SandboxSpec, record: Record, snapshot: bytes
    ) -> DiskSandbox:
        async def begin(spec: SandboxSpec, origin: Reference | None) -> AsyncSandbox:
            self._refuse_unenforceable(spec)
            image = self._unpacked.get(spec.image) or await asyncio.to_thread(self._unpack, spec)
            started = await self._in_spawner(self._spawn_on_disk, spec, image, origin)
            commands = toolkit.PROGRAM_COMMANDS
            sandbox = await self._boot(started, spec, record, substitutes=commands)
            await asyncio.to_thread(started.share.root.enclosed)
            return sandbox

        def another(
            spec: SandboxSpec, origin: Reference | None
        ) -> Coroutine[Any, Any, AsyncSandbox]:
            return whole(begin(spec, origin))

        first = await another(spec, Reference.parse(snapshot) if snapshot else None)
        return DiskSandbox(first, another)

    async def _in_spawner(self, spawn: Callable[..., Started], *arguments: object) -> Started:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._spawner, spawn, *arguments)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxStartError(f"bubblewrap could not be run: {error}") from error

    async def _boot(
        self, started: Started, spec: SandboxSpec, record: Record, **surroundings: Any
    ) -> AsyncSandbox:
        link, loop = Link(), asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: link, started.connection)
        machine = BubblewrapMachine(started, link, self._spawner)
        known = Surroundings(
            uid=user_id(spec),
            has_world=True,
            groups=started.gates,
            **self._limits(spec),
            **surroundings,
        )
        return await boot(machine, spec, known, record, self._uplink)

    def _spawn_in_memory(self, spec: SandboxSpec) -> Started:
        with etc_arguments(ETC in spec.writable) as (etc, fds):
            share = self._with_group(spec, Share(user=_claim_user()))
            line = [*line_in_memory(spec, etc, share.user, self._datasets.of(spec)), *COMMAND]
            return start(share, line, fds)

    def _spawn_on_disk(self, spec: SandboxSpec, image: Path, origin: Reference | None) -> Started:
        if self._roots is None:
            self._roots = Roots()
        tools = self._files.ensure_toolkit()
        root = self._roots.make(spec, image, origin)
        try:
            line = line_on_disk(spec, root, tools, self._datasets.of(spec))
            line += toolkit.python("-s", "-S", "-P", "-c", PROGRAM)
            started = start(self._with_group(spec, Share()), line, [root.users.namespace])
        except BaseException:
            self._roots.release(root)
            raise
        held = HeldRoot(self._roots, root, self._spawner)
        return started._replace(share=started.share._replace(root=held))

    def _with_group(self, spec: SandboxSpec, share: Share) -> Share:
        if self._hierarchy is None:
            return share
        try:
            name = f"{cgroups.PREFIX}{self._owner}-{next(_serial)}"
            return share._replace(group=self._hierarchy.create(name, spec))
        except OSError:
            share.free()
            raise

    def _unpack(self, spec: SandboxSpec) -> Path:
        with self._unpacking:
            if self._files is None:
                try:
                    self._files = ImageFiles(roots.directory())
                except OSError as error:
                    raise SandboxStartError(f"bubblewrap: no place on disk: {error}") from error
            self._files.ensure_toolkit()
            self._unpacked[spec.image] = self._files.ensure(spec.image)
            return self._unpacked[spec.image]

    def _refuse_unenforceable(self, spec: SandboxSpec) -> None:
        if reason := _image_trouble(spec):
            raise ImageMissing(reason)
        self._datasets.of(spec)
        if spec.runtime != "runc":
            raise SandboxStartError(
                f"bubblewrap has no runtime {spec.runtime!r}: use Docker for it"
            )
        if spec.ale_agent and spec.disk_mb:
            raise SandboxStartError(agent_program.BELONGS_IN_IMAGE)
        if spec.disk_mb and (reason := roots.unavailable()):
            raise SandboxStartError(f"bubblewrap: a root on disk {reason}, or leave disk_mb at 0")
        if spec.cpus and not (self._hierarchy and self._hierarchy.limits_cpus):
            raise SandboxStartError(
                f"bubblewrap cannot limit a sandbox to {spec.cpus} cpus here: run it as root where "
                "there is a cpu controller, use Docker, or leave cpus at 0"
            )

    def _limits(self, spec: SandboxSpec) -> Mapping[str, Any]:
        return {} if self._hierarchy else limits_without_groups(spec)


def _image_trouble(spec: SandboxSpec) -> str | None:
    if spec.disk_mb or spec.image == SandboxSpec.image:
        return None
    return (
        f"bubblewrap has no image {spec.image!r}, only the host's own /usr, which stands for "
        f"{SandboxSpec.image!r}: for other images set disk_mb, or use Docker (--runtime=docker)"
    )


def probe(spec: SandboxSpec) -> str | None:
    """Why bubblewrap cannot run `spec` now, with the command to fix it; None if it can."""
    if reason := _image_trouble(spec):
        return reason
    if not shutil.which("bwrap"):
        return "bwrap is not installed; type: apt-get install bubblewrap"
    try:
        if spec.ale_agent:
            agent_program.ensure()
        user = _claim_user()
    except (SandboxStartError, OSError) as error:
        return str(error)
    with contextlib.ExitStack() as held, etc_arguments(ETC in spec.writable) as (etc, fds):
        held.callback(Share(user=user).free)
        programs = [agent_program.PYTHON] if spec.ale_agent else []
        line = line_in_memory(spec, etc, user, {})
        line += ["bash", "-c", NEEDS, "bash", *programs]
        try:
            answer = subprocess.run(
                line, pass_fds=fds, capture_output=True, text=True, timeout=PROBE_S
            )
        except subprocess.TimeoutExpired:
            return f"it did not answer within {PROBE_S:g} s; try again when this host is less busy"
    if answer.returncode:
        return f"it does not work on this host: {answer.stderr.strip() or answer.stdout.strip()}"
    return f"a root on disk {reason}" if spec.disk_mb and (reason := roots.unavailable()) else None


def _claim_user() -> HostId | None:
    """Only root can run each sandbox as another user. Errors: SandboxStartError, OSError."""
    return host_ids.claim() if os.getuid() == 0 else None


Start = Callable[[SandboxSpec, Reference | None], Awaitable[AsyncSandbox]]


class DiskSandbox(RenewableSandbox):
    """A sandbox that is reset by replacing its machine, since the agent may have changed everything
    in its root.

    A snapshot is a `Reference` to a copy of the root, which stays on this host until the runtime
    is told to `forget` it.

    first: what it begins as. start: starts another one, from a copy of a root or, with None, from
    the image.
    """

    def __init__(self, first: AsyncSandbox, start: Start):
        super().__init__(first, lambda spec: start(spec, None))
        self._start = start

    async def snapshot(self, max_bytes: int | None = None) -> bytes:
        """max_bytes: SandboxError if it holds more."""
        try:
            reference = await self._machine.freeze()
        except OSError as error:
            raise SandboxError(f"the root cannot be copied: {error}") from error
        return bytes(reference)

    async def restore(self, snapshot: bytes) -> None:
        copy = Reference.parse(snapshot)
        await self._replace(lambda: self._start(self.spec, copy))

    async def reset(self) -> None:
        await self.renew()
