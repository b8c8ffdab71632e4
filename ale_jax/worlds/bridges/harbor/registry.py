"""Which folders are tasks: those in a folder, or those of a data set that a registry names.

A registry is a JSON list of {name, version, description, tasks: [{name, path, git_url}]}. Paths are
relative to its folder. What is in a repository elsewhere has to be cloned first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ale_jax.files import read_json


def task_folders(path: Path, dataset: str) -> list[Path]:
    """Returns the folders of tasks, by name and number.

    path: of a folder with their folders, or, with `dataset`, of a registry. dataset: NAME, or
    NAME@VERSION where a registry has several. ValueError if there are none, or not here.
    """
    if dataset:
        return sorted(_registered(path, dataset), key=_by_number)
    if not path.is_dir():
        raise ValueError(f"folder {str(path)!r} does not exist; give the one with the tasks")
    found = (each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    return sorted(found, key=_by_number)


def _registered(path: Path, dataset: str) -> list[Path]:
    try:
        entries = read_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"registry {path} cannot be read: {error}") from None
    name, _, version = dataset.partition("@")
    sets = _objects(entries, str(path))
    fitting = [s for s in sets if s.get("name") == name and version in ("", s.get("version"))]
    if len(fitting) != 1:
        known = ", ".join(f"{each.get('name')}@{each.get('version')}" for each in sets)
        raise ValueError(f"registry {path} has {known or 'nothing'}: name one as dataset")
    tasks = _objects(fitting[0].get("tasks"), f"{path}: tasks of {dataset}")
    return [_local(task, path, f"{path}: tasks[{n}]") for n, task in enumerate(tasks)]


def _local(task: dict[str, Any], path: Path, where: str) -> Path:
    if task.get("git_url") is not None:
        raise ValueError(
            f"{where}.git_url {task['git_url']!r:.200} is elsewhere: clone it, and name the folder "
            "with the tasks"
        )
    given = task.get("path")
    if not isinstance(given, str) or not (path.parent / given).is_dir():
        raise ValueError(f"{where}.path {given!r:.200} is no folder of a task")
    return path.parent / given


def _objects(values: Any, where: str) -> Sequence[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise ValueError(f"{where} {values!r:.80} must be a list of objects")
    return values


def _by_number(folder: Path) -> tuple[int, str]:
    return (int(folder.name) if folder.name.isdecimal() else -1), folder.name
