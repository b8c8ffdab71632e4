"""Where a separate verifier judges: in an image of its own, in what a Dockerfile of its own makes,
or where the policy has begun."""

from __future__ import annotations

import dataclasses
import posixpath

from ale_jax.worlds.bridges.harbor.dockerfile import Layout, Source, layout_of, workdir_of
from ale_jax.worlds.bridges.harbor.records import TESTS, Place
from ale_jax.worlds.bridges.harbor.settings import Settings, StepSettings
from ale_jax.worlds.bridges.harbor.trees import Leaf, Tree

DOCKERFILE, COMPOSE = "Dockerfile", "docker-compose.yaml"


@dataclasses.dataclass(frozen=True)
class SeparateSandbox:
    """layout: what the sandbox begins with. image: which has the tests; "" for the policy's. tests:
    None for those of the task's folder."""

    layout: Layout
    image: str = ""
    tests: Tree | None = None


def separate_sandbox(
    source: Source, settings: Settings, place: Place, step: StepSettings | None
) -> SeparateSandbox:
    """Returns where the separate verifier of a task, or of a step, judges. What the step says comes
    first; then an image comes before a Dockerfile. ValueError for a Dockerfile that cannot be laid
    out."""
    given = [(settings.judging.machine, "tests")]
    if step:
        given.insert(0, (step.judging.machine, f"steps/{step.name}/tests"))
    found = SeparateSandbox(place.layout)
    for machine, directory in given:
        dockerfile = f"{directory}/{DOCKERFILE}"
        has_dockerfile = (source.path / dockerfile).exists()
        if (source.path / directory / COMPOSE).exists():
            raise ValueError(f"{directory}/{COMPOSE} makes more than one container")
        if machine and machine.image:
            workdir = workdir_of(source.path, dockerfile) if has_dockerfile else ""
            found = SeparateSandbox(Layout(workdir), machine.image, {})
            break
        if has_dockerfile:
            found = _laid_out(layout_of(source, dockerfile))
            break
    machine = next((machine for machine, _ in given if machine), None)
    workdir = (machine and machine.workdir) or found.layout.workdir or place.layout.workdir
    env = {**found.layout.env, **(machine.env if machine else {})}
    return dataclasses.replace(found, layout=Layout(workdir, env, found.layout.files))


def _laid_out(layout: Layout) -> SeparateSandbox:
    """What a Dockerfile copies into /tests are the tests."""
    paths = {posixpath.relpath(path, TESTS): leaf for path, leaf in layout.files.items()}
    tests: dict[str, Leaf] = {path: leaf for path, leaf in paths.items() if path[:2] != ".."}
    files = {p: leaf for p, leaf in layout.files.items() if not p.startswith(f"{TESTS}/")}
    return SeparateSandbox(Layout(layout.workdir, layout.env, files), tests=tests)
