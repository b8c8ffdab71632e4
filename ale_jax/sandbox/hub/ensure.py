"""Makes sure that an image is present: finds it, builds it from its recipe or, if allowed, pulls
it. After a build that failed, no name refers to an incomplete image."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ale_jax.sandbox.api import ImageMissing, SandboxStartError
from ale_jax.sandbox.hub import daemon, guard, store
from ale_jax.sandbox.hub.daemon import NAME_LABEL, RECIPE_LABEL, Daemon, Image
from ale_jax.sandbox.hub.node import Node, reference_of, versions
from ale_jax.sandbox.hub.recipe import (
    DOCKERFILE,
    SCRIPT,
    SETTINGS,
    Recipe,
    content_address,
    read_recipe,
    write_context,
)
from ale_jax.sandbox.hub.store import EVERY_IMAGE, ImageName, Manifest

NEVER, MISSING = "never", "missing"
LAST_WORDS_BYTES = 2000
_ADDRESS = re.compile(rf"[0-9a-f]{{{store.ADDRESS_DIGITS}}}")

FindRecipe = Callable[[str], Path | None]

log = logging.getLogger(__name__)


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
        image = daemon.find(node.api, recipe.reference) or adopt(node.api, recipe)
        _keep_what_was_made_by_hand(node, recipe)
        if image is None:
            build_log = node.store.build_log(recipe.reference)
            image = build(node.api, recipe, build_log, (removals, builders))
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
        raise _changed_since(name, recipe) if recipe else missing(name, has_recipe=False)
    return node.manifest(image, reference_of(image, name))


def _changed_since(name: ImageName, recipe: Recipe) -> ImageMissing:
    return ImageMissing(
        f"image {name.text!r} is missing: its recipe {recipe.folder} has changed and makes"
        f" {recipe.reference!r} now; ask for {recipe.moving!r}, or check out the older recipe"
    )


def missing(name: ImageName, has_recipe: bool) -> ImageMissing:
    """Returns the error about an image that is not here, with the command to type."""
    command, why = f"ale-sandbox images build {name.text}", "it was not built yet"
    if name.recipe and not has_recipe:
        why = f"there is no recipe of that name; write one, a folder DIR/{name.recipe}"
        command = f"ale-sandbox images build --recipes=DIR {name.text}"
    elif not name.recipe:
        why = "images without a recipe are not pulled unasked"
        command = f"ale-sandbox images build --pull {name.text}"
    return ImageMissing(
        f"image {name.text!r} is missing: {why}; type, where the sandboxes run: {command}"
    )


def build(api: Daemon, recipe: Recipe, build_log: Path, locks: tuple[int, ...]) -> Image:
    """Builds the image, with the recipe's reference and labels. Errors: SandboxStartError.

    build_log: receives all output of the build. locks: descriptors that stay open as long as any
    process that was started for the build is alive, even if this process dies.
    """
    log.info("building image %s (%s) from %s", recipe.moving, recipe.reference, recipe.folder)
    if recipe.kind == DOCKERFILE:
        _build_dockerfile(recipe, build_log)
    else:
        _run_script(recipe, build_log, locks)
        _refuse_changed(api, recipe)
    image = daemon.find(api, recipe.reference)
    if image is None and recipe.kind == SCRIPT:
        image = adopt(api, recipe)
    if image is None:
        raise _failure(recipe, build_log, "it left no image of that name ($ALE_IMAGE)")
    return image


def adopt(api: Daemon, recipe: Recipe) -> Image | None:
    """Returns the image that this script built when it was run by hand; adds the recipe's
    reference.

    Such a script calls the image "ale-NAME" and labels it ale.recipe=HASH, the first 16 digits of
    its own SHA-256. None if there is no such image.
    """
    image = daemon.find(api, recipe.moving) if recipe.kind == SCRIPT else None
    if image is None or image.labels.get(RECIPE_LABEL) != _script_hash(recipe):
        return None
    daemon.tag(api, image, recipe.reference)
    return daemon.find(api, recipe.reference)


def _script_hash(recipe: Recipe) -> str:
    return hashlib.sha256((recipe.folder / SCRIPT).read_bytes()).hexdigest()[:16]


def _labels(recipe: Recipe) -> Mapping[str, str]:
    return {RECIPE_LABEL: recipe.address, NAME_LABEL: recipe.moving}


def _build_dockerfile(recipe: Recipe, build_log: Path) -> None:
    seconds = recipe.settings.build_seconds
    start = time.monotonic()
    with tempfile.TemporaryFile() as context, build_log.open("w") as said:
        _write_context(recipe, context)
        try:
            with daemon.connect() as api:
                messages = api.build(
                    fileobj=context,
                    custom_context=True,
                    tag=recipe.reference,
                    labels=_labels(recipe),
                    network_mode=recipe.settings.network,
                    use_config_proxy=recipe.settings.network != "none",
                    rm=True,
                    forcerm=True,
                    timeout=seconds,
                    decode=True,
                )
                for text in daemon.watched(messages, seconds):
                    said.write(text)
        except daemon.TROUBLE as error:
            said.flush()
            too_late = time.monotonic() - start > seconds
            reason = _took_longer(seconds) if too_late else str(error)
            raise _failure(recipe, build_log, reason) from error


def _write_context(recipe: Recipe, context) -> None:
    try:
        write_context(recipe.folder, context)
        address = content_address(recipe.folder)
    except (OSError, ValueError) as error:
        raise SandboxStartError(f"cannot send {recipe.folder} to the daemon: {error}") from error
    if address != recipe.address:
        raise _changed(recipe)
    context.seek(0)


def _run_script(recipe: Recipe, build_log: Path, locks: tuple[int, ...]) -> None:
    seconds = recipe.settings.build_seconds
    labels = " ".join(f"{key}={value}" for key, value in _labels(recipe).items())
    line = [sys.executable, "-I", guard.__file__, str(seconds), str(recipe.folder / SCRIPT)]
    with build_log.open("wb") as said:
        # Leaving the block closes the pipe, which ends the script, and waits for the guard.
        with subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=recipe.folder,
            env=os.environ | {"ALE_IMAGE": recipe.reference, "ALE_LABELS": labels},
            pass_fds=locks,
            start_new_session=True,
        ) as process:
            code = process.wait()
    if code == guard.TIMED_OUT:
        raise _failure(recipe, build_log, _took_longer(seconds))
    if code:
        raise _failure(recipe, build_log, f"exit code {code}")


def _refuse_changed(api: Daemon, recipe: Recipe) -> None:
    try:
        unchanged = content_address(recipe.folder) == recipe.address
    except (OSError, ValueError):  # no longer a valid recipe; the next attempt says why
        unchanged = False
    if not unchanged:
        daemon.untag(api, recipe.reference)
        raise _changed(recipe)


def _took_longer(seconds: float) -> str:
    return f"it took longer than {seconds:g} s (build_seconds in {SETTINGS})"


def _changed(recipe: Recipe) -> SandboxStartError:
    return SandboxStartError(
        f"recipe {recipe.folder} of image {recipe.moving!r} changed while it was built; start again"
    )


def _failure(recipe: Recipe, build_log: Path, reason: str) -> SandboxStartError:
    with build_log.open("rb") as said:
        said.seek(max(0, said.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        words = said.read().decode("utf-8", "replace").strip()
    return SandboxStartError(
        f"image {recipe.moving!r} could not be built from {recipe.folder / recipe.kind}: {reason}; "
        f"correct the recipe and start again. The end of {build_log}:\n{words}"
    )
