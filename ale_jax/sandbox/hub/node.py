"""A node: its Docker daemon, and what is written down about the images there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import daemon, names
from ale_jax.sandbox.hub.daemon import Daemon, Image
from ale_jax.sandbox.hub.inside import capabilities_of
from ale_jax.sandbox.hub.manifest import Manifest, Verification
from ale_jax.sandbox.hub.names import ImageName
from ale_jax.sandbox.hub.store import Store, open_store


@dataclasses.dataclass(frozen=True)
class Node:
    """The daemon is right about which images there are; the store only adds what it cannot know."""

    api: Daemon
    store: Store

    def known(self, image: Image, reference: str) -> Manifest | None:
        """What is written down about exactly this image; None if it has to be written anew."""
        try:
            found = self.store.read(reference)
        except ValueError:  # `describe`, which follows, sets the file aside and says so
            return None
        return found if found and found.image_id == image.id else None

    def describe(
        self, image: Image, reference: str, build_seconds: float | None = None
    ) -> Manifest:
        """Writes down what the daemon says about an image. The lock of the image must be held."""
        found = self.store.read_or_set_aside(reference)
        if found and found.image_id == image.id:
            return found
        name = names.parse(reference)
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
        """What is known of an image, found out where it is not written down. Takes the lock."""
        if found := self.known(image, reference):
            return found
        with self.store.lock(names.parse(reference).moving):
            return self.describe(image, reference)

    def verify(self, seen: Manifest, verification: Verification) -> None:
        """Writes down the outcome of a trial, if the image is still the one that was tried."""
        with self.store.lock(seen.name):
            if (found := self.store.read_or_set_aside(seen.reference)) is None:
                found = seen
            if found.image_id == seen.image_id:
                self.store.write(dataclasses.replace(found, verified=verification))


@contextlib.contextmanager
def open_node(state: Path) -> Iterator[Node]:
    """SandboxStartError if no daemon answers. state: the folder of the registry's files."""
    with daemon.connect() as api:
        yield Node(api, open_store(state, daemon.identity(api)))


def listed(node: Node) -> Iterator[Manifest]:
    """See `Hub.list_images`."""
    tags = (tag for image in daemon.find_labelled(node.api) for tag in image.tags)
    ours = [name for tag in tags if (name := names.parse_ours(tag))]
    asked_for = [names.parse(each) for each in node.store.references()]
    found = {}
    for name in (*ours, *asked_for):
        if image := daemon.find(node.api, name.text):
            found[reference_of(image, name)] = image
    for reference in sorted(found):
        try:
            yield node.manifest(found[reference], reference)
        except SandboxStartError:
            if daemon.find(node.api, reference):  # else it was removed meanwhile
                raise


def versions(image: Image, recipe: str | None) -> list[str]:
    """The references of an image: what contents of `recipe` it was made from; mostly one."""
    found = (names.parse_ours(tag) for tag in image.tags)
    return [name.text for name in found if name and name.recipe == recipe and name.address]


def reference_of(image: Image, name: ImageName) -> str:
    """Under which name things are written down about the image that `name` stands for."""
    if name.address or not (found := versions(image, name.recipe)):
        return name.text
    return found[-1]
