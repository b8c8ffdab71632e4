"""Makes sure that an image is present (finds it, builds it or, if allowed, pulls it), and removes
unused images that were made from recipes."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import build, daemon, store
from ale_jax.sandbox.hub.daemon import NAME_LABEL, RECIPE_LABEL, Image
from ale_jax.sandbox.hub.node import Node, reference_of, versions
from ale_jax.sandbox.hub.recipe import Recipe, read_recipe
from ale_jax.sandbox.hub.store import EVERY_IMAGE, ImageName, Manifest

NEVER, MISSING = "never", "missing"
_ADDRESS = re.compile(rf"[0-9a-f]{{{store.ADDRESS_DIGITS}}}")

FindRecipe = Callable[[str], Path | None]


def ensure(
    node: Node, name: ImageName, find_recipe: FindRecipe, pull: str, above: tuple[str, ...] = ()
) -> Manifest:
    """See `Hub.ensure`. above: the images, by name, for whose sake this one is needed."""
    if pull not in (NEVER, MISSING):
        raise ValueError(f"pull {pull!r} must be one of {NEVER}, {MISSING}")
    if name.moving in above:
        raise ValueError(f"images are made FROM each other: {' -> '.join((*above, name.moving))}")
    folder = find_recipe(name.recipe) if name.recipe else None
    recipe = read_recipe(name.recipe, folder) if folder else None
    if recipe is None or name.address not in (None, recipe.address):
        return _take_as_it_is(node, name, recipe, pull)
    if manifest := _ready(node, recipe):
        return manifest
    for base in recipe.bases:
        _ensure_base(node, base, find_recipe, pull, (*above, recipe.moving))
    return _make(node, recipe)


def _ensure_base(
    node: Node, base: str, find_recipe: FindRecipe, pull: str, above: tuple[str, ...]
) -> None:
    try:
        ensure(node, store.parse(base), find_recipe, pull, above)
    except SandboxStartError as error:
        raise SandboxStartError(f"image {above[-1]!r} starts from {base!r}: {error}") from error


def _ready(node: Node, recipe: Recipe) -> Manifest | None:
    """The manifest, if nothing is left to be done; costs one question to the daemon."""
    image = daemon.find(node.api, recipe.reference)
    if image is None or f"{recipe.moving}:latest" not in image.tags:
        return None
    return node.known(image, recipe.reference)


def _make(node: Node, recipe: Recipe) -> Manifest:
    """Does what is missing of: image, moving name, manifest. Dying in between does no harm."""
    with (
        # Removing an image while another one is built can take layers away from under the builder.
        node.store.lock(EVERY_IMAGE, shared=True) as removals,
        node.store.lock(recipe.moving) as builders,
    ):
        start, seconds = time.monotonic(), None
        image = daemon.find(node.api, recipe.reference) or build.adopt(node.api, recipe)
        _keep_what_was_made_by_hand(node, recipe)
        if image is None:
            build_log = node.store.build_log(recipe.reference)
            image = build.build(node.api, recipe, build_log, (removals, builders))
            seconds = time.monotonic() - start
        if f"{recipe.moving}:latest" not in image.tags:
            daemon.tag(node.api, image, recipe.moving)
        return node.describe(image, recipe.reference, seconds)


def _keep_what_was_made_by_hand(node: Node, recipe: Recipe) -> None:
    """Names an image that is about to lose its only name: `prune` could not find it any more."""
    image = daemon.find(node.api, recipe.moving)
    label = image.labels.get(RECIPE_LABEL, "")[: store.ADDRESS_DIGITS] if image else ""
    if _ADDRESS.fullmatch(label) and not versions(image, recipe.name):
        daemon.tag(node.api, image, store.reference(recipe.name, label))


def _take_as_it_is(node: Node, name: ImageName, recipe: Recipe | None, pull: str) -> Manifest:
    """An image that cannot be built here: somebody else's, or one of an older content."""
    image = daemon.find(node.api, name.text)
    if image is None and pull == MISSING and not name.recipe:
        with node.store.lock(name.moving):
            if daemon.find(node.api, name.text) is None:
                daemon.pull(name.text)
        image = daemon.find(node.api, name.text)
    if image is None:
        raise SandboxStartError(f"image {name.text!r} is missing: {_remedy(name, recipe)}")
    return node.manifest(image, reference_of(image, name))


def _remedy(name: ImageName, recipe: Recipe | None) -> str:
    if recipe:
        return (
            f"its recipe {recipe.folder} has changed and makes {recipe.reference!r} now; "
            f"ask for {recipe.moving!r}, or check out the older recipe"
        )
    if name.recipe:
        return f"there is no recipe of that name; write one, with a Dockerfile, for {name.recipe!r}"
    return f"it has no recipe, and nothing is pulled unasked; type: docker pull {name.text}"


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Pruned:
    """References of the images that were removed, and of those that were to be, but are in use."""

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
        raise ValueError(f"keep {keep} must be at least 1: the newest image is in use by its name")
    removed, in_use = [], []
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
    """Sorts first what the moving name stands for, however old it is, then the youngest."""
    return f"ale-{recipe}:latest" not in image.tags, -image.created


def _by_recipe(node: Node) -> dict[str, list[Image]]:
    found: dict[str, list[Image]] = {}
    for image in daemon.find_labelled(node.api):
        ours = (store.parse_ours(tag) for tag in image.tags)
        for recipe in {name.recipe for name in ours if name and _is_ours(image, name.recipe)}:
            found.setdefault(recipe, []).append(image)
    return found


def _is_ours(image: Image, recipe: str) -> bool:
    """Whether it was made from the recipe. One that somebody made FROM ours has our labels, too."""
    name = f"ale-{recipe}"
    return RECIPE_LABEL in image.labels and image.labels.get(NAME_LABEL, name) == name


def _remove_names(node: Node, image: Image, recipe: str) -> tuple[str, ...]:
    """Takes away the names that we gave; with the last name of all, the image goes."""
    if users := daemon.users(node.api, image):
        raise ValueError(
            f"image {versions(image, recipe) or image.id} of 'ale-{recipe}' is in use by "
            f"{', '.join(users[:5])}; end what uses it, or type: docker rm {users[0]}"
        )
    ours = [tag for tag in image.tags if (n := store.parse_ours(tag)) and n.recipe == recipe]
    for tag in ours:
        daemon.untag(node.api, tag)
        node.store.forget(tag)
    log.info("removed %s (image %s)", ", ".join(ours), image.id)
    return tuple(ours)
