"""The agent's user in a container: an id that no other container has, under the name "agent".

A container without a user namespace shares its ids with the host, and with them what the kernel
counts for each user (see host_ids.py).
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import NotFound
from docker.types import Mount

from ale_jax.sandbox import docker_labels
from ale_jax.sandbox.hub.node import MAX_LINKS, SYMLINK

NAME = "agent"
MAX_BYTES = 1 << 20
# The fields of an account after its name and password.
ACCOUNTS = {"/etc/passwd": "{id}:{id}::/work:/bin/bash", "/etc/group": "{id}:"}


class Accounts:
    """The files that name users, of all images that were started."""

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
        with tempfile.TemporaryDirectory(prefix="ale-accounts-") as folder:
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
        labels = docker_labels.momentary()
        container = self._api.create_container(image, ["true"], labels=labels)["Id"]
        try:
            return {path: self._text(container, path, f"image {image!r}") for path in ACCOUNTS}
        finally:
            self._api.remove_container(container, force=True)

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
