"""A node: its Docker daemon, the manifests of the images there, the capabilities of an image, which
are determined without running it, and the removal of unused images that were built from recipes."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import logging
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import daemon, store
from ale_jax.sandbox.hub.daemon import (
    NAME_LABEL,
    RECIPE_LABEL,
    Daemon,
    Image,
    asking,
    unstarted,
)
from ale_jax.sandbox.hub.store import (
    EVERY_IMAGE,
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

log = logging.getLogger(__name__)


def capabilities_of(api: Daemon, image: Image) -> Capabilities:
    """Inspects the files of `image` through a container that is never started."""
    with asking(f"inspect the files of image {image.id}"), unstarted(api, image.id) as container:
        has = {name: _has_program(api, container, name) for name in ("bash", "python3", "tar")}
        present = [
            libc
            for libc, paths in LOADERS.items()
            if any(_is_program(api, container, path) for path in paths)
        ]
        agent = _knows_agent(api, container)
        return Capabilities(**has, agent=agent, libc=present[0] if present else "none")


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


@dataclasses.dataclass(frozen=True)
class Pruned:
    """References of the images that were removed, and of those that were kept as they are in
    use."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]


def remove(node: Node, name: ImageName) -> tuple[str, ...]:
    """See `Hub.remove`."""
    image = daemon.find(node.api, name.text)
    if image is None:
        raise ValueError(f"image {name.text!r} is not here; type: docker images")
    if not name.recipe or not _is_ours(image, name.recipe):
        raise ValueError(
            f"image {name.text!r} was not made from a recipe and is left alone; "
            f"type: docker rmi {name.text}"
        )
    with node.store.lock(EVERY_IMAGE), node.store.lock(name.moving):
        return _remove_names(node, image, name.recipe)


def prune(node: Node, keep: int, only: ImageName | None) -> Pruned:
    """See `Hub.prune`."""
    if keep < 1:
        raise ValueError(f"keep {keep} must be at least 1: the moving name needs the newest image")
    removed, in_use = list[str](), list[str]()
    with node.store.lock(EVERY_IMAGE):
        for recipe, images in _by_recipe(node).items():
            if only and only.recipe != recipe:
                continue
            newest_first = sorted(images, key=lambda each: _age_rank(each, recipe))
            for image in newest_first[keep:]:
                try:
                    removed += _remove_names(node, image, recipe)
                except ValueError as error:
                    log.info("%s", error)
                    in_use += versions(image, recipe)
    return Pruned(tuple(removed), tuple(in_use))


def _age_rank(image: Image, recipe: str) -> tuple[bool, float]:
    """Sorts the image with the moving name first, however old it is, then newer before older."""
    return f"ale-{recipe}:latest" not in image.tags, -image.created


def _by_recipe(node: Node) -> dict[str, list[Image]]:
    found: dict[str, list[Image]] = {}
    for image in daemon.find_labelled(node.api):
        ours = (store.parse_ours(tag) for tag in image.tags)
        for recipe in {name.recipe for name in ours if name and _is_ours(image, name.recipe)}:
            found.setdefault(recipe, []).append(image)
    return found


def _is_ours(image: Image, recipe: str) -> bool:
    """Whether it was built from the recipe. An image that others built FROM ours inherits our
    labels, but then NAME_LABEL is not its own name."""
    name = f"ale-{recipe}"
    return RECIPE_LABEL in image.labels and image.labels.get(NAME_LABEL, name) == name


def _remove_names(node: Node, image: Image, recipe: str) -> tuple[str, ...]:
    """Removes the names that we gave; the daemon deletes an image with its last name."""
    if users := daemon.users(node.api, image):
        raise ValueError(
            f"image {versions(image, recipe) or image.id} of 'ale-{recipe}' is in use by "
            f"{', '.join(users[:5])}; stop what uses it, or type: docker rm {users[0]}"
        )
    ours = [tag for tag in image.tags if (n := store.parse_ours(tag)) and n.recipe == recipe]
    for tag in ours:
        daemon.untag(node.api, tag)
        node.store.forget(tag)
    log.info("removed %s (image %s)", ", ".join(ours), image.id)
    return tuple(ours)
