"""Directories of a host that its operator offers to sandboxes by name. They see them read-only, and
all see the same files, which nobody copies."""

from __future__ import annotations

import dataclasses
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.spec import DATASET, DATASETS, KERNEL, TMP, SandboxSpec

FORM = "NAME=/PATH"
OTHERS_READ, OTHERS_ENTER = 0o4, 0o1


@dataclasses.dataclass(frozen=True)
class Datasets:
    """What the operator of a host offers. No spec, task or agent can name a path.

    entries: a name and its absolute path each. Errors: ValueError for what cannot be offered.
    """

    entries: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, path in self.entries:
            _check_entry(name, path)
        names = [name for name, _ in self.entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"data set {min(twice)!r:.80} is there twice: give each its own name")

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Datasets:
        """Reads one FORM each. Errors: ValueError."""
        pairs = [text.partition("=") for text in texts]
        return cls(tuple((name, path) for name, _, path in pairs))

    def check_here(self) -> None:
        """Checks that sandboxes of this machine can read them. Errors: ValueError."""
        for name, text in self.entries:
            if not Path(text).is_dir():
                raise ValueError(f"data set {name}: {text!r:.200} is no directory of this machine")
            # Also where a link leads. Bubblewrap mounts its own files over the host's /tmp.
            _check_place(name, str(Path(text).resolve()))
            if os.getuid() == 0:  # then sandboxes are run as other users
                _check_open_to_all(name, Path(text).resolve())
            elif not os.access(text, os.R_OK | os.X_OK):
                raise ValueError(f"data set {name}: {text!r:.200} cannot be read; type: ls {text}")

    def of(self, spec: SandboxSpec) -> dict[str, str]:
        """The host's path for each directory that a sandbox sees. Errors: SandboxStartError."""
        known, found = dict(self.entries), {}
        for name in spec.datasets:
            if name not in known:
                raise SandboxStartError(
                    f"data set {name!r} is not one that the operator of this host offers, with "
                    f"--dataset {name}=/PATH of ale-sandbox serve, or with rollout.datasets"
                )
            found[f"{DATASETS}/{name}"] = known[name]
        return found


NO_DATASETS = Datasets()


def _check_entry(name: str, path: str) -> None:
    if not DATASET.fullmatch(name):
        raise ValueError(
            f"data set {f'{name}={path}'!a:.80} must be {FORM}, such as wiki=/srv/wiki"
        )
    is_plain = path.startswith("/") and not path.startswith("//") and "\0" not in path
    if not is_plain or path == "/" or posixpath.normpath(path) != path:
        raise ValueError(f"data set {name}: {path!a:.200} must be an absolute path below /: {FORM}")
    _check_place(name, path)


def _check_place(name: str, path: str) -> None:
    if f"{path}/".startswith((*KERNEL, f"{TMP}/")):
        raise ValueError(f"data set {name}: {path!a:.200} is no place for one: move it")


def _check_open_to_all(name: str, path: Path) -> None:
    for each, need, right in (
        (path, OTHERS_READ | OTHERS_ENTER, "rx"),
        *((parent, OTHERS_ENTER, "x") for parent in path.parents),
    ):
        if each.stat().st_mode & need != need:
            raise ValueError(
                f"data set {name}: the users of sandboxes cannot read {path}; type: "
                f"chmod o+{right} {each}"
            )
