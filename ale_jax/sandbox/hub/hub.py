"""The registry of sandbox images, and the test that shows whether an image works.

    hub = Hub()
    hub.ensure("ale-shell")

builds the image from its recipe in envs/shell/image, once per node, however many callers ask for
it.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from ale_jax.sandbox.api import ImageMissing, Sandbox, SandboxError, SandboxStartError
from ale_jax.sandbox.hub import daemon, ensure, store
from ale_jax.sandbox.hub.ensure import NEVER, FindRecipe
from ale_jax.sandbox.hub.node import Pruned, listed, open_node, prune, reference_of, remove
from ale_jax.sandbox.hub.store import Manifest, Verification, default_state
from ale_jax.sandbox.spec import SandboxSpec

Start = Callable[[SandboxSpec], AbstractContextManager[Sandbox]]
# Returns the score of a sandbox after the oracle (True) or nobody (False) has acted in it.
Judge = Callable[[Sandbox, bool], float]

CONTENT = b"written by the host: \xff"


def first_fault(start: Start, spec: SandboxSpec, judge: Judge | None) -> str | None:
    """Returns the first fault of an image, None if it has none. Starts up to three sandboxes."""
    try:
        with start(spec) as sandbox:
            for fault in _faults(sandbox):
                return fault
        for oracle, wanted in ((True, 1.0), (False, 0.0)) if judge else ():
            with start(spec) as sandbox:
                if (score := judge(sandbox, oracle)) != wanted:
                    who = "the oracle" if oracle else "doing nothing"
                    return f"{who} scores {score} instead of {wanted:g}"
    except (SandboxError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _faults(sandbox: Sandbox) -> Iterator[str]:
    # Only shell builtins are used, because an image need not contain any program.
    greeting = sandbox.run("echo $((6 * 7))")
    if (greeting.exit_code, greeting.output) != (0, "42\n"):
        yield f"'echo' printed {greeting.output!r:.200} with exit code {greeting.exit_code}"
    if (code := sandbox.run("(exit 3)").exit_code) != 3:
        yield f"exit code 3 is reported as {code}"
    sandbox.write({"trial/written": CONTENT})
    copied = sandbox.run('printf %s "$(<trial/written)" > trial/copied')
    if copied.exit_code or sandbox.read("trial/copied") != CONTENT:
        yield f"a file that was written cannot be copied: {copied.output!r:.200}"


@dataclasses.dataclass(frozen=True)
class ImageOutcome:
    """The result for one of several images. manifest: None after a failure; trouble: its reason."""

    name: str
    manifest: Manifest | None
    trouble: str
    seconds: float


def find_recipe(name: str) -> Path | None:
    """Returns the recipe folder of the image ale-`name`: NAME in the folder of one's own recipes,
    or envs/NAME/image of this repository. ValueError if both exist, or there is no such folder."""
    ours = Path(__file__).parents[2] / "envs" / name / "image"
    own = _own_recipes() / name if os.environ.get(store.RECIPES_VARIABLE) else None
    if own and own.is_dir():
        if ours.is_dir():
            raise ValueError(f"recipe {own} has the name of {ours}: rename its folder")
        return own
    return ours if ours.is_dir() else None


def _own_recipes() -> Path:
    folder = Path(os.environ[store.RECIPES_VARIABLE])
    if not folder.is_dir():
        raise ValueError(
            f"{store.RECIPES_VARIABLE} {str(folder)!r:.200} is not a folder: it must have the"
            " recipe of each image ale-NAME as its subfolder NAME"
        )
    return folder


@dataclasses.dataclass(frozen=True)
class Hub:
    """The images of this node. Any number of threads and processes may use it at once.

    If no daemon answers, every method raises SandboxStartError, with the command to type.

    find_recipe: returns the folder of a recipe by its name ("shell"), None if there is none.
    state: the folder of manifests, build logs and locks; nodes may share it.
    """

    find_recipe: FindRecipe = find_recipe
    state: Path = dataclasses.field(default_factory=default_state)

    def ensure(self, name: str, pull: str = NEVER) -> Manifest:
        """Returns the image that `SandboxSpec.image` names, built from its recipe's current
        content.

        If there is no image of that content yet, it is built, and other callers that ask for it
        wait. An image without a recipe only has to be present.

        pull: "never", or "missing": a third-party image or a base that is missing is pulled from
        its registry.

        Raises:
          SandboxStartError: the image is missing and cannot be obtained, or its build failed (with
            the last lines of its output).
          ValueError: `name` is not the name of an image, or its recipe is not valid.
        """
        with open_node(self.state) as node:
            return ensure.ensure(node, store.parse(name), self.find_recipe, pull)

    def missing(self, name: str) -> ImageMissing:
        """Returns the error about an image that is not here, with the command to type."""
        wanted = store.parse(name)
        return ensure.missing(wanted, bool(wanted.recipe and self.find_recipe(wanted.recipe)))

    def ensure_all(
        self, wanted: Iterable[str], pull: str = NEVER, workers: int = 2
    ) -> tuple[ImageOutcome, ...]:
        """Calls `ensure` once for each name, at most `workers` at a time; keeps the order of the
        names.

        Errors are reported, not raised: an image that fails does not delay the others.
        """
        with ThreadPoolExecutor(workers, "ale-hub") as pool:
            return tuple(pool.map(lambda name: self._outcome(name, pull), dict.fromkeys(wanted)))

    def inspect(self, name: str) -> Manifest:
        """Returns the manifest of an image that is here. ValueError if it is not."""
        wanted = store.parse(name)
        with open_node(self.state) as node:
            image = daemon.find(node.api, wanted.text)
            if image is None:
                raise ValueError(
                    f"image {name!r} is not here; build it with Hub().ensure({name!r})"
                )
            return node.manifest(image, reference_of(image, wanted))

    def list_images(self) -> tuple[Manifest, ...]:
        """Lists the images here that were built from recipes or asked for before, sorted by
        name."""
        with open_node(self.state) as node:
            return tuple(listed(node))

    def validate(
        self,
        name: str,
        start: Start,
        runtime: str,
        judge: Judge | None = None,
        spec: SandboxSpec | None = None,
    ) -> Verification:
        """Tests an image that is here, and records the outcome in its manifest.

        start: starts a sandbox of the runtime called `runtime`. judge: performs the image's task
        with its oracle (True) or not at all (False) and scores it; the scores must be 1 and 0.
        spec: without it, this image with the default limits.
        """
        seen = self.inspect(name)
        fault = first_fault(start, spec or SandboxSpec(image=name), judge)
        verification = Verification(time.time(), runtime, fault is None, fault or "in order")
        with open_node(self.state) as node:
            node.verify(seen, verification)
        return verification

    def remove(self, name: str) -> tuple[str, ...]:
        """Removes an image that was built from a recipe; returns the names that were removed.

        Waits for builds in progress on this node.

        ValueError if it is not here, was not built from a recipe, or is used by a container.
        """
        with open_node(self.state) as node:
            return remove(node, store.parse(name))

    def prune(self, keep: int = 1, name: str | None = None) -> Pruned:
        """Removes all but the `keep` newest images of each recipe, except those that are in use.

        The image that has the moving name is always kept. Third-party images are not touched.

        name: the name of an image, to prune only the images of its recipe.
        """
        only = store.parse(name) if name else None
        with open_node(self.state) as node:
            return prune(node, keep, only)

    def _outcome(self, name: str, pull: str) -> ImageOutcome:
        start = time.monotonic()
        try:
            manifest, trouble = self.ensure(name, pull), ""
        except (SandboxStartError, ValueError) as error:
            manifest, trouble = None, str(error)
        return ImageOutcome(name, manifest, trouble, time.monotonic() - start)
