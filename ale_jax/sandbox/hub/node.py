"""A node: its Docker daemon, the manifests of the images there, and the capabilities of an image,
which are determined without running it."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from docker.errors import NotFound

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import daemon, store
from ale_jax.sandbox.hub.daemon import Daemon, Image, asking, momentary_labels
from ale_jax.sandbox.hub.store import (
    Capabilities,
    ImageName,
    ImageStore,
    Manifest,
    Verification,
    open_store,
)

FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin")
LOADERS = {
    "glibc": ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"),
    "musl": ("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1"),
}
PASSWD, AGENT = "/etc/passwd", b"agent:"
MAX_PASSWD_BYTES = 1 << 20
MAX_LINKS = 8
SYMLINK = 1 << 27  # a bit of Go's os.FileMode; its lowest nine bits are those of Unix


def capabilities_of(api: Daemon, image: Image) -> Capabilities:
    """Inspects the files of `image` through a container that is never started."""
    with asking(f"inspect the files of image {image.id}"), unstarted(api, image) as container:
        has = {name: _has_program(api, container, name) for name in ("bash", "python3", "tar")}
        present = [
            libc
            for libc, paths in LOADERS.items()
            if any(_is_program(api, container, path) for path in paths)
        ]
        agent = _knows_agent(api, container)
        return Capabilities(**has, agent=agent, libc=present[0] if present else "none")


@contextlib.contextmanager
def unstarted(api: Daemon, image: Image) -> Iterator[str]:
    """Yields a container of `image` that never runs, for access to the image's files."""
    container = api.create_container(image.id, ["-"], labels=momentary_labels())["Id"]
    try:
        yield container
    finally:
        with contextlib.suppress(NotFound):
            api.remove_container(container, force=True, v=True)


def _has_program(api: Daemon, container: str, name: str) -> bool:
    return any(_is_program(api, container, f"{folder}/{name}") for folder in FOLDERS)


def _is_program(api: Daemon, container: str, path: str) -> bool:
    found = _status(api, container, path)
    return found is not None and bool(found["mode"] & stat.S_IXUSR)


def _status(api: Daemon, container: str, path: str) -> dict | None:
    """Returns path, size and mode of the file that `path` leads to; None if there is none."""
    for _ in range(MAX_LINKS):
        answer = api.head(_archive(api, container), params={"path": path}, timeout=api.timeout)
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        status = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
        if not status["mode"] & SYMLINK:
            return status | {"path": path}
        path = status["linkTarget"]
    return None


def _knows_agent(api: Daemon, container: str) -> bool:
    status = _status(api, container, PASSWD)
    if status is None or status["size"] > MAX_PASSWD_BYTES:
        return False
    params = {"path": status["path"]}  # elsewhere in images of Nix
    # get_archive() would disable the time limit.
    with api.get(_archive(api, container), params=params, timeout=api.timeout) as answer:
        answer.raise_for_status()
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
            member = archive.next()
            content = archive.extractfile(member) if member and member.isfile() else None
            return content is not None and any(line.startswith(AGENT) for line in content)


def _archive(api: Daemon, container: str) -> str:
    """Returns the URL of a container's files in the daemon's API."""
    return f"{api.base_url}/v{api.api_version}/containers/{container}/archive"


@dataclasses.dataclass(frozen=True)
class Node:
    """The daemon decides which images exist; the store only adds what the daemon cannot know."""

    api: Daemon
    store: ImageStore

    def known(self, image: Image, reference: str) -> Manifest | None:
        """Returns the manifest of exactly this image; None if it has to be written again."""
        try:
            found = self.store.read(reference)
        except ValueError:  # `describe`, which is called next, renames the file and logs it
            return None
        return found if found and found.image_id == image.id else None

    def describe(
        self, image: Image, reference: str, build_seconds: float | None = None
    ) -> Manifest:
        """Writes and returns the manifest of an image. The caller must hold the image's lock."""
        found = self.store.read_or_set_aside(reference)
        if found and found.image_id == image.id:
            return found
        name = store.parse(reference)
        described = Manifest(
            name=name.moving,
            reference=reference,
            recipe=name.address,
            image_id=image.id,
            bytes=image.bytes,
            built=image.created,
            build_seconds=build_seconds,
            capabilities=capabilities_of(self.api, image),
            verified=None,
        )
        self.store.write(described)
        return described

    def manifest(self, image: Image, reference: str) -> Manifest:
        """Returns the manifest of an image; writes it, under the image's lock, if it is missing."""
        if found := self.known(image, reference):
            return found
        with self.store.lock(store.parse(reference).moving):
            return self.describe(image, reference)

    def verify(self, seen: Manifest, verification: Verification) -> None:
        """Records the outcome of a test, if the image is still the one that was tested."""
        with self.store.lock(seen.name):
            if (found := self.store.read_or_set_aside(seen.reference)) is None:
                found = seen
            if found.image_id == seen.image_id:
                self.store.write(dataclasses.replace(found, verified=verification))


@contextlib.contextmanager
def open_node(state: Path) -> Iterator[Node]:
    """Connects to the daemon; SandboxStartError if none answers. state: the registry's folder."""
    with daemon.connect() as api:
        yield Node(api, open_store(state, daemon.identity(api)))


def listed(node: Node) -> Iterator[Manifest]:
    """See `Hub.list_images`."""
    tags = (tag for image in daemon.find_labelled(node.api) for tag in image.tags)
    ours = [name for tag in tags if (name := store.parse_ours(tag))]
    asked_for = [store.parse(each) for each in node.store.references()]
    found = {}
    for name in (*ours, *asked_for):
        if image := daemon.find(node.api, name.text):
            found[reference_of(image, name)] = image
    for reference in sorted(found):
        try:
            yield node.manifest(found[reference], reference)
        except SandboxStartError:
            if daemon.find(node.api, reference):  # otherwise it has been removed since
                raise


def versions(image: Image, recipe: str | None) -> list[str]:
    """Returns the references that an image has for contents of `recipe`; mostly one."""
    found = (store.parse_ours(tag) for tag in image.tags)
    return [name.text for name in found if name and name.recipe == recipe and name.address]


def reference_of(image: Image, name: ImageName) -> str:
    """Returns the reference of the manifest for the image that `name` refers to."""
    if name.address or not (found := versions(image, name.recipe)):
        return name.text
    return found[-1]
