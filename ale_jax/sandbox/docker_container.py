"""The container of one sandbox, the machine that it is while it runs, and what of this host is
mounted into it: a socket between its runner and the host and the accounts of its users."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import os
import shutil
import socket
import tarfile
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.types import Mount

from ale_jax.sandbox import toolkit
from ale_jax.sandbox.booting import user_id
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.host_ids import HostId
from ale_jax.sandbox.hub.daemon import remove_container, unstarted
from ale_jax.sandbox.hub.node import MAX_LINKS, SYMLINK
from ale_jax.sandbox.link import DockerLink
from ale_jax.sandbox.runner.usage import Usage
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.vitals import Vitals, read_vitals

FULL = 0.9  # share of all CPUs from which on their users wait for each other
TROUBLE = (DockerException, requests.RequestException, OSError)

log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """A container to be started. mounts: for the runner's socket; empty if the daemon is elsewhere.
    user: the id of the agent, which no other container has; None for the usual one."""

    spec: SandboxSpec
    labels: Mapping[str, str]
    mounts: list[Mount]
    user: HostId | None

    @property
    def uid(self) -> int:
        return self.user.number if self.user else user_id(self.spec)

    def release(self) -> None:
        if self.user:
            self.user.release()


class DockerMachine:
    """A running container and the attached streams of its runner."""

    def __init__(
        self, api: docker.APIClient, container: str, attached, link: DockerLink, plan: Plan
    ):
        self.link = link
        self._api, self._container, self._plan = api, container, plan
        self._attached = attached  # owns the connection
        self._from_daemon = ContainerVitals(api, container)

    async def alive(self) -> bool:
        return await asyncio.to_thread(self._is_running)

    def vitals(self) -> Vitals | None:
        pid = self.link.runner_pid
        return read_vitals(pid) if pid else self._from_daemon.see()

    def usage(self) -> Usage:
        return {}  # the runner reads the container's cgroups, even if the daemon is remote

    def last_words(self) -> str:
        return self.link.stderr.decode("utf-8", "replace")

    async def destroy(self) -> None:
        self.link.fail("the sandbox is closed")
        await asyncio.to_thread(self._remove)

    def _is_running(self) -> bool:
        try:
            return self._api.inspect_container(self._container)["State"]["Running"]
        except TROUBLE:  # the container or the daemon is gone
            return False

    def _remove(self) -> None:
        try:
            remove_container(self._api, self._container)
            self._plan.release()
        except TROUBLE as error:
            log.warning("container %s is left to the reaper: %s", self._container[:12], error)
        self._attached.close()


class ContainerVitals:
    """The vitals of a container whose runner is not visible here, because its daemon is on another
    machine or it has a kernel of its own.

    As seen by the daemon: the runner counts as waiting for a CPU while its container uses up its
    quota or all CPUs. What the runner itself has used cannot be told apart, and counts as nothing.
    """

    def __init__(self, api: docker.APIClient, container: str):
        self._api, self._container = api, container
        self._last: Vitals | None = None
        self._before: tuple[float, dict[str, Any]] | None = None
        self._asking: asyncio.Future[None] | None = None

    def see(self) -> Vitals | None:
        """The latest answer of the daemon, which is then asked again in the background; None before
        its first answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().run_in_executor(None, self._ask)
        return self._last

    def _ask(self) -> None:
        try:
            paused = self._api.inspect_container(self._container)["State"]["Paused"]
            cpu = self._api.stats(self._container, stream=False, one_shot=True)["cpu_stats"]
        except (DockerException, requests.RequestException, KeyError):
            self._last = None  # as long as the daemon does not answer, the runner is not visible
            return
        at, before = time.monotonic(), self._before
        self._before = at, cpu
        busy = before is not None and _is_contended(before[1], cpu, at - before[0])
        self._last = Vitals(runnable=busy and not paused, stopped=paused, cpu_seconds=0.0)


def _is_contended(before: dict[str, Any], now: dict[str, Any], seconds: float) -> bool:
    def grown(group: str, name: str) -> int:
        return now[group].get(name, 0) - before[group].get(name, 0)

    if grown("throttling_data", "throttled_periods"):
        return True
    used = grown("cpu_usage", "total_usage") / 1e9
    return used >= FULL * now.get("online_cpus", 1) * seconds


# Path of the socket in the container. The host stops listening on it before the first command
# runs.
TARGET = f"{toolkit.HOME}.sock"
PREFIX = "ale-container-"  # of the folders of a process, whose name follows


class RunnerSockets:
    """The sockets of one runtime, in a folder that only its user may enter. Attached streams would
    also work, but the daemon and the container's shim copy their data, which takes longer than the
    runner's answer.

    A daemon on another machine or in a virtual machine does not see this folder, and a container
    with its own kernel (gVisor, Kata) may be unable to connect. The attached streams are used then.
    """

    def __init__(self, api: docker.APIClient, image: str, owner: Owner):
        self._folder = Path(tempfile.mkdtemp(prefix=_prefix(owner)))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = itertools.count()
        self._reach_containers = _can_mount(api, image, self._folder)

    @contextlib.asynccontextmanager
    async def offer(self, link: DockerLink) -> AsyncIterator[list[Mount]]:
        """Yields mounts through which a container's runner can take over `link` in the block."""
        if not self._reach_containers:
            yield []
            return
        path = self._folder / str(next(self._numbers))
        loop, listener = asyncio.get_running_loop(), _listen(path)
        try:
            server = await loop.create_unix_server(link.direct, sock=listener)
            try:
                yield [_mount(path)]
            finally:
                server.close()
        finally:
            listener.close()
            path.unlink()


def _prefix(owner: Owner) -> str:
    return f"{PREFIX}{owner}-"


def remove_abandoned() -> None:
    """Removes the folders of this user's processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(ValueError, FileNotFoundError):  # another folder, or already gone
            owner = Owner.parse(folder.name.removeprefix(PREFIX).rpartition("-")[0])
            if owner.is_here() and owner.is_dead() and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder)


def _listen(path: Path) -> socket.socket:
    """A listening socket for any user, since the runner's user id on the host varies."""
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # the full path may be too long
        path.chmod(0o666)
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


def _mount(path: Path) -> Mount:
    return Mount(TARGET, str(path), type="bind", read_only=True)


def _can_mount(api: docker.APIClient, image: str, folder: Path) -> bool:
    """Returns whether the daemon can mount `folder`."""
    config = api.create_host_config(mounts=[_mount(folder)], network_mode="none")
    try:
        with unstarted(api, image, host_config=config):
            return True
    except APIError as error:
        if error.status_code != 400:  # 400: the folder does not exist
            raise
        log.info("commands are sent through the daemon, which cannot mount %s: %s", folder, error)
        return False


NAME = "agent"
MAX_BYTES = 1 << 20
# The fields of an account after its name and password.
ACCOUNTS = {"/etc/passwd": "{id}:{id}::/work:/bin/bash", "/etc/group": "{id}:"}


class Accounts:
    """The files that name users, of all images that were started.

    The agent's user has an id that no other container has, under the name "agent": a container
    without a user namespace shares its ids with the host, and with them what the kernel counts for
    each user (see host_ids.py).
    """

    def __init__(self, api: docker.APIClient):
        self._api = api
        self._files: dict[str, dict[str, str]] = {}

    def learn(self, image: str) -> None:
        """Reads the image's files, once. Errors: as the Docker API; OSError, which names the image,
        for a file that is too large or none."""
        if image not in self._files:
            self._files[image] = self._read(image)

    @contextlib.contextmanager
    def offer(self, image: str, uid: int) -> Iterator[list[Mount]]:
        """Yields the mounts of a container that starts within the block, in which "agent" has the
        id `uid`. The image must be learned."""
        with tempfile.TemporaryDirectory(prefix=_prefix(Owner.current())) as folder:
            mounts = []
            for target, text in self._files[image].items():
                rows = [row for row in text.splitlines() if row.partition(":")[0] != NAME]
                rows.append(f"{NAME}:x:{ACCOUNTS[target].format(id=uid)}")
                path = Path(folder, Path(target).name)
                path.write_text("\n".join(rows) + "\n")
                path.chmod(0o644)
                mounts.append(Mount(target, str(path), type="bind", read_only=True))
            yield mounts

    def _read(self, image: str) -> dict[str, str]:
        with unstarted(self._api, image) as container:
            return {path: self._text(container, path, f"image {image!r}") for path in ACCOUNTS}

    def _text(self, container: str, path: str, image: str) -> str:
        place = path
        for _ in range(MAX_LINKS):
            try:
                parts, found = self._api.get_archive(container, place)
            except NotFound:
                return ""
            if found["size"] > MAX_BYTES:
                raise OSError(
                    f"{image}: {path} has {found['size']} bytes, but may have {MAX_BYTES}"
                )
            packed = b"".join(parts)
            if not found["mode"] & SYMLINK:
                return _content(packed, f"{image}: {path}")
            place = found["linkTarget"]  # as in images of Nix
        raise OSError(f"{image}: {path} is behind more than {MAX_LINKS} links: make it a file")


def _content(packed: bytes, name: str) -> str:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = archive.next()
        if member is None or not member.isreg():
            raise OSError(f"{name} is a directory or a device: make it a file")
        return archive.extractfile(member).read().decode("utf-8", "replace")
