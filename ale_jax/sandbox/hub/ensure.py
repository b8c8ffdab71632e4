"""Makes sure that an image is present (finds it, builds it or, if allowed, pulls it), and removes
unused images that were built from recipes."""

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
    """See `Hub.ensure`. above: the names of the images that are built FROM this one."""
    if pull not in (NEVER, MISSING):
        raise ValueError(f"pull {pull!r} must be one of {NEVER}, {MISSING}")
    if name.moving in above:
        raise ValueError(f"images are built FROM each other: {' -> '.join((*above, name.moving))}")
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
    """Returns the manifest if nothing is left to do. Costs one request to the daemon."""
    image = daemon.find(node.api, recipe.reference)
    if image is None or f"{recipe.moving}:latest" not in image.tags:
        return None
    return node.known(image, recipe.reference)


def _make(node: Node, recipe: Recipe) -> Manifest:
    """Creates whatever is missing: image, moving name, manifest. Safe to interrupt anywhere."""
    with (
        # Removing an image during a build can delete layers that the build uses.
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
    """Tags an image that is about to lose its only name, so that `prune` can still find it."""
    image = daemon.find(node.api, recipe.moving)
    label = image.labels.get(RECIPE_LABEL, "")[: store.ADDRESS_DIGITS] if image else ""
    if _ADDRESS.fullmatch(label) and not versions(image, recipe.name):
        daemon.tag(node.api, image, store.reference(recipe.name, label))


def _take_as_it_is(node: Node, name: ImageName, recipe: Recipe | None, pull: str) -> Manifest:
    """Returns an image that cannot be built here: a third-party one, or one of an older content."""
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
    return (
        f"it has no recipe, and images are not pulled automatically; type: docker pull {name.text}"
    )


log = logging.getLogger(__name__)


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
