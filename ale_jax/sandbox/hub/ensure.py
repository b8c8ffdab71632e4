"""Makes an image be there: finds it, builds it, or, if that was allowed, pulls it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import build, daemon, names
from ale_jax.sandbox.hub.daemon import RECIPE_LABEL
from ale_jax.sandbox.hub.manifest import Manifest
from ale_jax.sandbox.hub.names import ImageName
from ale_jax.sandbox.hub.node import Node, reference_of, versions
from ale_jax.sandbox.hub.recipe import Recipe, read_recipe
from ale_jax.sandbox.hub.store import EVERY_IMAGE

NEVER, MISSING = "never", "missing"
_ADDRESS = re.compile(rf"[0-9a-f]{{{names.ADDRESS_DIGITS}}}")

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
        ensure(node, names.parse(base), find_recipe, pull, above)
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
    label = image.labels.get(RECIPE_LABEL, "")[: names.ADDRESS_DIGITS] if image else ""
    if _ADDRESS.fullmatch(label) and not versions(image, recipe.name):
        daemon.tag(node.api, image, names.reference(recipe.name, label))


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
