"""Removes images that were made from recipes, and never another, nor one that is in use."""

from __future__ import annotations

import dataclasses
import logging

from ale_jax.sandbox.hub import daemon, names
from ale_jax.sandbox.hub.daemon import NAME_LABEL, RECIPE_LABEL, Image
from ale_jax.sandbox.hub.names import ImageName
from ale_jax.sandbox.hub.node import Node, versions
from ale_jax.sandbox.hub.store import EVERY_IMAGE

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
        ours = (names.parse_ours(tag) for tag in image.tags)
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
    ours = [tag for tag in image.tags if (n := names.parse_ours(tag)) and n.recipe == recipe]
    for tag in ours:
        daemon.untag(node.api, tag)
        node.store.forget(tag)
    log.info("removed %s (image %s)", ", ".join(ours), image.id)
    return tuple(ours)
