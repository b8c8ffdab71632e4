"""Dockerfiles whose result can be laid out without building them.

Such a one names a base, a working directory and variables, and copies files. Its base is taken to
be the image of the run. Any other one makes an image of its own, which somebody has to build.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from ale_jax.sandbox.hub.recipe import instructions
from ale_jax.worlds.bridges.harbor.fields import VARIABLE
from ale_jax.worlds.bridges.harbor.trees import Leaf, Tree, below, read_leaf, read_text, read_tree

NO_EFFECT = ("LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "MAINTAINER", "SHELL", "STOPSIGNAL")
BASE = re.compile(r"(?:--platform=\S+\s+)?\S+(?:\s+AS\s+\S+)?", re.IGNORECASE)
INSTALLS = ("RUN", "ADD", "ARG", "VOLUME", "HEALTHCHECK", "ONBUILD")
BUILD = (
    "makes an image of its own: build it, and name it in environment.docker_image or by the option "
    "`images`, or that of a verifier in verifier.environment.docker_image; if the image has what "
    "the Dockerfiles install, set the option `installed`"
)


@dataclasses.dataclass(frozen=True)
class Source:
    """The folder of a task. image: that was built of its Dockerfile; "" if none was. installed: the
    image has what Dockerfiles install, so that such lines are passed over."""

    path: Path
    image: str = ""
    installed: bool = False


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a Dockerfile makes of the image of the run. workdir: "" if it names none. files: by
    absolute path."""

    workdir: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Tree = dataclasses.field(default_factory=dict)


def layout_of(source: Source, name: str) -> Layout:
    """Returns what the Dockerfile `name` of a task's folder makes; what it copies is beside it.
    ValueError, with the line, if that cannot be laid out."""
    layout, bases = Layout(), 0
    for keyword, rest in _lines(source.path, name):
        try:
            bases += keyword == "FROM"
            if source.installed and (keyword in INSTALLS or rest.startswith("--from=")):
                continue
            if bases > 1 and not source.installed:
                raise ValueError(BUILD)
            layout = Layout() if keyword == "FROM" else layout
            layout = _with(layout, keyword, rest, source.path, posixpath.dirname(name))
        except ValueError as error:
            raise ValueError(f"{name}: {f'{keyword} {rest}'!r:.160} {error}") from None
    return layout


def workdir_of(folder: Path, name: str) -> str:
    """Returns the working directory that a Dockerfile of any kind names; "" for none. ValueError if
    it is unclear."""
    workdir = ""
    for keyword, rest in _lines(folder, name):
        if keyword == "FROM":
            workdir = ""
        if keyword == "WORKDIR":
            workdir = _directory(workdir, rest)
    return workdir


def _lines(folder: Path, name: str) -> list[tuple[str, str]]:
    try:
        return list(instructions(read_text(folder, name)))
    except ValueError as error:
        raise ValueError(str(error) if name in str(error) else f"{name}: {error}") from None


def _with(layout: Layout, keyword: str, rest: str, folder: Path, context: str) -> Layout:
    if keyword in NO_EFFECT or (keyword == "FROM" and BASE.fullmatch(rest)):
        return layout
    if keyword == "USER" and rest in ("root", "0"):
        return layout
    if keyword == "WORKDIR":
        return dataclasses.replace(layout, workdir=_directory(layout.workdir, rest))
    if keyword == "ENV":
        return dataclasses.replace(layout, env={**layout.env, **_variables(rest)})
    if keyword == "COPY" and not rest.startswith(("-", "[", "<")):
        *sources, target = rest.split()
        copied = _copied(folder, context, sources, _target(layout.workdir, target))
        return dataclasses.replace(layout, files={**layout.files, **copied})
    raise ValueError(BUILD)


def _directory(current: str, given: str) -> str:
    given = given.strip("\"'")
    if "$" in given:
        raise ValueError("names a variable: write the directory")
    return posixpath.normpath(posixpath.join(current or "/", given))


def _target(workdir: str, given: str) -> str:
    target = _directory(workdir, given)
    is_directory = given.endswith(("/", ".")) or target == workdir
    return f"{target.rstrip('/')}/" if is_directory else target


def _variables(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        name, _, value = rest.partition(" ")
        words = [f"{name}={value.strip()}"] if value else words
    pairs = dict(word.partition("=")[::2] for word in words if "=" in word)
    if len(pairs) != len(words) or "$" in rest or not all(map(VARIABLE.fullmatch, pairs)):
        raise ValueError(BUILD)
    return pairs


def _copied(folder: Path, context: str, sources: list[str], target: str) -> dict[str, Leaf]:
    copied: dict[str, Leaf] = {}
    for source in sources:
        inner = posixpath.normpath(posixpath.join(context, source.lstrip("/")))
        if set(source) & set("*?[$") or not f"{inner}/".startswith(f"{context}/" * bool(context)):
            raise ValueError(BUILD)
        if inner.startswith(".."):
            raise ValueError("copies from outside of its folder")
        if (folder / inner).is_dir():
            copied.update(below(target, read_tree(folder, inner)))
        else:
            name = posixpath.basename(inner) if target.endswith("/") or len(sources) > 1 else ""
            path = posixpath.join(target, name) if name else target
            copied[path] = read_leaf(folder, inner)
    if not copied:
        raise ValueError("copies nothing")
    return copied
