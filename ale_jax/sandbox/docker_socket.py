"""A socket between a container's runner and its host. What goes through attached streams is copied
by the daemon and by the container's shim, which takes longer than the runner takes to answer."""

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

from ale_jax.sandbox import toolkit
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.link import DockerLink

# Where a container finds it. Nobody listens there any more when its first command runs.
TARGET = f"{toolkit.HOME}.sock"
PREFIX = "ale-sockets-"

log = logging.getLogger(__name__)


class Sockets:
    """Those of one runtime, in a folder that only its user may enter.

    A daemon on another machine, or in one of its own, has no such folder; and what it starts may be
    unable to connect (a runtime with a kernel of its own). Then the attached streams remain.
    """

    def __init__(self, api: docker.APIClient, image: str, owner: Owner):
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{owner}-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = itertools.count()
        self._reach_containers = _can_mount(api, image, self._folder)

    @contextlib.asynccontextmanager
    async def offer(self, link: DockerLink) -> AsyncIterator[list[Mount]]:
        """What a container is to mount so that its runner can take over `link` within the block."""
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
    """The folders of this user's processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(ValueError, FileNotFoundError):  # not ours, or gone by itself
            owner = Owner.parse(folder.name.removeprefix(PREFIX).rpartition("-")[0])
            if owner.is_here() and owner.is_dead() and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder)


def _listen(path: Path) -> socket.socket:
    """For whichever user the runner is to the host."""
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # whole, it may be longer than allowed
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
    """Whether the daemon has that folder: it is asked to mount it, in a container never run."""
    config = api.create_host_config(mounts=[_mount(folder)], network_mode="none")
    try:
        container = api.create_container(image, ["true"], host_config=config)
    except APIError as error:
        if error.status_code != 400:  # that it does not exist
            raise
        log.info("commands go through the daemon, which cannot mount %s: %s", folder, error)
        return False
    api.remove_container(container["Id"], force=True)
    return True
