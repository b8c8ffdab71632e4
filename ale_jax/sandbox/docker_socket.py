"""A socket between a container's runner and the host. Attached streams would also work, but the
daemon and the container's shim copy their data, which takes longer than the runner's answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import docker
from docker.errors import APIError
from docker.types import Mount

from ale_jax.sandbox import docker_labels, toolkit
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.link import DockerLink

# Path of the socket in the container. The host stops listening on it before the first command
# runs.
TARGET = f"{toolkit.HOME}.sock"
PREFIX = "ale-sockets-"

log = logging.getLogger(__name__)


class RunnerSockets:
    """The sockets of one runtime, in a folder that only its user may enter.

    A daemon on another machine or in a virtual machine does not see this folder, and a container
    with its own kernel (gVisor, Kata) may be unable to connect. The attached streams are used then.
    """

    def __init__(self, api: docker.APIClient, image: str, owner: Owner):
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{owner}-"))
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
    """Whether the daemon can mount `folder`; creates a container with it but never starts it."""
    config = api.create_host_config(mounts=[_mount(folder)], network_mode="none")
    try:
        labels = docker_labels.momentary()
        container = api.create_container(image, ["true"], host_config=config, labels=labels)
    except APIError as error:
        if error.status_code != 400:  # 400: the folder does not exist
            raise
        log.info("commands are sent through the daemon, which cannot mount %s: %s", folder, error)
        return False
    api.remove_container(container["Id"], force=True)
    return True
