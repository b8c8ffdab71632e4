"""The toolkit as a volume of a Docker daemon: made once, mounted read-only into every container."""

from __future__ import annotations

import fcntl
import io
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.errors import NotFound

from ale_jax.sandbox import toolkit

LABEL = "ale.toolkit"
MARK = "complete"  # written last


def ensure(api: docker.APIClient, image: str) -> str:
    """The name of the volume, which is filled if it was not. image: any that is there.

    Errors: those of `toolkit.archive` and of the daemon.
    """
    address, archive = toolkit.archive()
    name = f"ale-toolkit-{address}"
    with _one_at_a_time(address):
        api.create_volume(name, labels={LABEL: address})
        with _container(api, image, name) as container:
            if not _is_complete(api, container):
                api.put_archive(container, toolkit.HOME, archive)
                api.put_archive(container, toolkit.HOME, _mark())
    return name


def binding(name: str, mode: str = "ro") -> str:
    """How a container mounts it."""
    return f"{name}:{toolkit.HOME}:{mode}"


@contextmanager
def _one_at_a_time(address: str) -> Iterator[None]:
    """Among the processes of this host. A lock ends with the process that holds it."""
    with (Path(tempfile.gettempdir()) / f"ale-toolkit-{address}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _container(api: docker.APIClient, image: str, volume: str) -> Iterator[str]:
    """One that never runs, through which a volume can be read and written."""
    binds = api.create_host_config(binds=[binding(volume, "rw")], network_mode="none")
    container = api.create_container(image, ["true"], host_config=binds, labels={LABEL: "filling"})
    try:
        yield container["Id"]
    finally:
        api.remove_container(container["Id"], force=True)


def _is_complete(api: docker.APIClient, container: str) -> bool:
    try:
        stream, _ = api.get_archive(container, f"{toolkit.HOME}/{MARK}")
    except NotFound:
        return False
    stream.close()
    return True


def _mark() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(MARK))
    return packed.getvalue()
