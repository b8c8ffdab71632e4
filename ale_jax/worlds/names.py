"""From the name of a world in a config to its class."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from ale_jax.worlds.api import World

OURS: Mapping[str, str] = {
    "shell": "ale_jax.envs.shell.env:Shell",
    "corridor": "ale_jax.envs.corridor.env:Corridors",
    "countdown": "ale_jax.envs.countdown.env:Countdown",
    "harbor": "ale_jax.worlds.bridges.harbor.world:Harbor",
    "terminal_bench": "ale_jax.worlds.bridges.harbor.world:Harbor",  # the same reader
    "reasoning_gym": "ale_jax.worlds.bridges.reasoning_gym:ReasoningGym",
    "gem": "ale_jax.worlds.bridges.games:Gem",
    "textarena": "ale_jax.worlds.bridges.games:TextArena",
    "bfcl": "ale_jax.worlds.bridges.bfcl:Bfcl",
    "verifiers": "ale_jax.worlds.bridges.verifiers:Verifiers",
    "rows": "ale_jax.worlds.bridges.rows:Questions",
}
COMPULSORY = ("reset", "step")
PACKAGE = __name__.partition(".")[0]
GROUP = "ale_jax.worlds"  # the entry points by which installed packages name their worlds


def known_names() -> tuple[str, ...]:
    """Returns all short names of worlds."""
    return tuple(sorted({*OURS, *entry_points(group=GROUP).names}))


def find_world(name: str, folder: str = "") -> type[World]:
    """Returns the class that a config calls `name`: a short name, or "module:Class".

    folder: where modules are looked for before all other places; empty for none.

    Raises:
      ValueError: there is no such world, its module cannot be imported, or the class lacks a
        method that each world must have.
    """
    path = name if ":" in name else _path_of(name)
    module_name, _, class_name = path.partition(":")
    found = getattr(_imported(module_name, name, folder), class_name, None)
    if not (isinstance(found, type) and issubclass(found, World)):
        raise ValueError(
            f"world {name!r:.80}: module {module_name} has no class {class_name!r} that is a "
            "World (ale_jax.worlds.api)"
        )
    lacking = [method for method in COMPULSORY if getattr(found, method) is getattr(World, method)]
    if lacking:
        raise ValueError(f"world {name!r:.80}: {class_name} must define {' and '.join(lacking)}")
    return found


def is_ours(world: type[World]) -> bool:
    """Tells whether a world comes with the package."""
    return world.__module__.partition(".")[0] == PACKAGE


def folder_of(world: type[World], folder: str = "") -> Path:
    """Returns the folder to which the paths of a world's files are relative: its module's. Ours
    have no files of their own, so that theirs are the user's, in `folder`."""
    if is_ours(world):
        return Path(folder).resolve()
    return Path(sys.modules[world.__module__].__file__ or ".").resolve().parent


def _path_of(name: str) -> str:
    if name in OURS:
        return OURS[name]
    for point in entry_points(group=GROUP, name=name):
        return point.value
    raise ValueError(
        f"world {name!r:.80} is unknown: choose one of {', '.join(known_names())}, or name a "
        "class as module:Class"
    )


def _imported(module: str, name: str, folder: str) -> object:
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # a module may be newer than the last look at its folder
    try:
        return importlib.import_module(module)
    except Exception as error:  # of any kind: it is the user's module that runs here
        where = f", which is looked for in {folder} first" if folder else ""
        raise ValueError(
            f"world {name!r:.80}: module {module!r:.80}{where} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
