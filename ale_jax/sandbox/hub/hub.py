"""The registry of sandbox images, and the trial in which an image proves that it works.

    hub = Hub()
    hub.ensure("ale-shell")

makes the image from its recipe in envs/shell/image, once per node, however many ask.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from ale_jax.sandbox.api import Sandbox, SandboxError, SandboxStartError
from ale_jax.sandbox.hub import daemon, ensure, store
from ale_jax.sandbox.hub.ensure import NEVER, FindRecipe, Pruned
from ale_jax.sandbox.hub.node import listed, open_node, reference_of
from ale_jax.sandbox.hub.store import Manifest, Verification, default_state
from ale_jax.sandbox.spec import SandboxSpec

Start = Callable[[SandboxSpec], AbstractContextManager[Sandbox]]
# The score of a sandbox, in which the oracle is to act before (True) or nobody (False).
Judge = Callable[[Sandbox, bool], float]

CONTENT = b"written by the host: \xff"


def first_fault(start: Start, spec: SandboxSpec, judge: Judge | None) -> str | None:
    """The first thing that is wrong with an image, None if nothing is. Three sandboxes at most."""
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
    # With what the shell can do itself: an image need not hold any program.
    greeting = sandbox.run("echo $((6 * 7))")
    if (greeting.exit_code, greeting.output) != (0, "42\n"):
        yield f"'echo' gives {greeting.output!r:.200} and exit code {greeting.exit_code}"
    if (code := sandbox.run("(exit 3)").exit_code) != 3:
        yield f"exit code 3 arrives as {code}"
    sandbox.write({"trial/written": CONTENT})
    copied = sandbox.run('printf %s "$(<trial/written)" > trial/copied')
    if copied.exit_code or sandbox.read("trial/copied") != CONTENT:
        yield f"a file that was written cannot be copied: {copied.output!r:.200}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one image of several. manifest: None if there is trouble, which says why."""

    name: str
    manifest: Manifest | None
    trouble: str
    seconds: float


def recipe_in_envs(name: str) -> Path | None:
    """The recipe's folder of the image ale-`name`, in this repository: envs/NAME/image."""
    folder = Path(__file__).parents[3] / "envs" / name / "image"
    return folder if folder.is_dir() else None


@dataclasses.dataclass(frozen=True)
class Hub:
    """The images of this node. Any number of threads and processes may use it at once.

    Where no daemon answers, every method raises SandboxStartError, with the line to type.

    find_recipe: gives the folder of a recipe by its name ("shell"), None if there is none.
    state: the folder of manifests, build logs and locks; nodes may share it.
    """

    find_recipe: FindRecipe = recipe_in_envs
    state: Path = dataclasses.field(default_factory=default_state)

    def ensure(self, name: str, pull: str = NEVER) -> Manifest:
        """The image that `SandboxSpec.image` names, built from its recipe as that is now.

        An image of a recipe is built when its content has no image yet; meanwhile others who ask
        for it wait. Any other image only has to be there.

        pull: "never", or "missing": an image of somebody else, or a base, that is not here is
        fetched from its registry.

        Raises:
          SandboxStartError: it is missing and cannot be had, or its build failed (with the last
            lines that the build said).
          ValueError: this is no name of an image, or its recipe is not in order.
        """
        with open_node(self.state) as node:
            return ensure.ensure(node, store.parse(name), self.find_recipe, pull)

    def ensure_all(
        self, wanted: Iterable[str], pull: str = NEVER, workers: int = 2
    ) -> tuple[Outcome, ...]:
        """`ensure` for each name once, at most `workers` at a time; in the order of the names.

        Its errors are reported, not raised: an image that fails does not keep others waiting.
        """
        with ThreadPoolExecutor(workers, "ale-hub") as pool:
            return tuple(pool.map(lambda name: self._outcome(name, pull), dict.fromkeys(wanted)))

    def inspect(self, name: str) -> Manifest:
        """What is known of an image that is here. ValueError if it is not."""
        wanted = store.parse(name)
        with open_node(self.state) as node:
            image = daemon.find(node.api, wanted.text)
            if image is None:
                raise ValueError(f"image {name!r} is not here; make it with Hub().ensure({name!r})")
            return node.manifest(image, reference_of(image, wanted))

    def list_images(self) -> tuple[Manifest, ...]:
        """The images here that were made from recipes, and others that were asked for, by name."""
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
        """Tries an image that is here out, and writes the outcome into its manifest.

        start: of the runtime called `runtime`. judge: plays the task of the image with its oracle
        (True) or not at all (False) and scores it: 1 and 0 are wanted. spec: without it, one with
        this image and otherwise usual limits.
        """
        seen = self.inspect(name)
        fault = first_fault(start, spec or SandboxSpec(image=name), judge)
        verification = Verification(time.time(), runtime, fault is None, fault or "in order")
        with open_node(self.state) as node:
            node.verify(seen, verification)
        return verification

    def remove(self, name: str) -> tuple[str, ...]:
        """Removes an image that was made from a recipe; returns the names that are gone.

        Waits for builds that are under way on this node.

        ValueError if it is not here, not made from a recipe, or if a container uses it.
        """
        with open_node(self.state) as node:
            return ensure.remove(node, store.parse(name))

    def prune(self, keep: int = 1, name: str | None = None) -> Pruned:
        """Removes all but the `keep` newest images of each recipe, and none that is in use.

        What the moving name stands for is always kept. Images of others are not touched.

        name: of the recipe's image, if only those of one recipe are meant.
        """
        only = store.parse(name) if name else None
        with open_node(self.state) as node:
            return ensure.prune(node, keep, only)

    def _outcome(self, name: str, pull: str) -> Outcome:
        start = time.monotonic()
        try:
            manifest, trouble = self.ensure(name, pull), ""
        except (SandboxStartError, ValueError) as error:
            manifest, trouble = None, str(error)
        return Outcome(name, manifest, trouble, time.monotonic() - start)
