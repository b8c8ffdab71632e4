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
        """Reads the image's files, once. Errors: as the Docker API; OSError for a large file."""
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
            return {path: self._text(container, path) for path in ACCOUNTS}
        finally:
            self._api.remove_container(container, force=True)

    def _text(self, container: str, path: str) -> str:
        try:
            parts, found = self._api.get_archive(container, path)
        except NotFound:
            return ""
        if found["size"] > MAX_BYTES:
            raise OSError(f"the image's {path} has {found['size']} bytes")
        with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
            file = archive.extractfile(archive.next())
            return file.read().decode("utf-8", "replace") if file else ""
