"""Reads task folders in the format of terminal-bench.

    NAME/task.yaml, solution.sh, run-tests.sh, tests/..., Dockerfile, docker-compose.yaml

All tasks are played in the same image, without a network. A folder that asks for more is refused,
because its verdicts would be wrong; the error names the folder.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from ale_jax.envs.terminal_bench import scripts

TASK, SOLUTION, RUN_TESTS, TESTS = "task.yaml", "solution.sh", "run-tests.sh", "tests"
DOCKERFILE, COMPOSE = "Dockerfile", "docker-compose.yaml"
MAX_TEXT_BYTES = 1 << 20
MAX_TESTS_BYTES = 8 << 20
MAX_TEST_FILES = 1000
AGENT_SECONDS, TEST_SECONDS = 360.0, 60.0  # terminal-bench's defaults
# Fields that do not affect how a task is played.
DESCRIPTIVE = (
    *("author", "author_name", "author_email", "difficulty", "category", "tags", "language"),
    *("disable_asciinema", "estimated_duration_sec"),
    *("expert_time_estimate_min", "junior_time_estimate_min"),
)
MEANT = (
    *("instruction", "parser_name", "max_agent_timeout_sec", "max_test_timeout_sec"),
    "run_tests_in_same_shell",
)


@dataclasses.dataclass(frozen=True)
class TerminalBenchTask:
    """name: of the folder. solution: a bash script. tests: files by path relative to tests/; pytest
    runs `test_file`. agent_seconds: time limit of an episode, which the caller must enforce.
    test_seconds: time limit of the tests."""

    name: str
    instruction: str
    solution: bytes
    tests: Mapping[str, bytes]
    test_file: str
    agent_seconds: float
    test_seconds: float


def read_tasks(folder: Path, exclude: Collection[str] = ()) -> list[TerminalBenchTask]:
    """The tasks in the subfolders of `folder`, ordered by name, without those named in `exclude`.

    ValueError if there are none, if a name in `exclude` does not exist, or if tasks cannot be
    played; the error then lists all of them.
    """
    if not folder.is_dir():
        raise ValueError(f"folder {str(folder)!r} does not exist; give the one with the tasks")
    names = sorted((each.name for each in folder.iterdir() if each.is_dir()), key=_by_number)
    if unknown := sorted(set(exclude) - set(names)):
        raise ValueError(f"tasks {', '.join(unknown)} are excluded, but are not in {folder}")
    tasks, faults = [], []
    for name in names:
        if name not in exclude:
            try:
                tasks.append(read_task(folder / name))
            except ValueError as error:
                faults.append(str(error))
    if faults:
        raise ValueError("\n".join(faults))
    if not tasks:
        raise ValueError(f"folder {str(folder)!r} holds no task; give the one with the tasks")
    return tasks


def read_task(folder: Path) -> TerminalBenchTask:
    """Reads the task in `folder`. ValueError, with the folder's name, if the task is damaged or
    cannot be played here."""
    try:
        return _read_task(folder)
    except (ValueError, OSError) as error:
        raise ValueError(f"task {folder}: {error}") from error


def _read_task(folder: Path) -> TerminalBenchTask:
    meant = _settings(_read_yaml(folder, TASK))
    test_file = scripts.test_file_of(_read_text(folder, RUN_TESTS))
    if (folder / DOCKERFILE).exists():
        scripts.check_dockerfile(_read_text(folder, DOCKERFILE))
    if (folder / COMPOSE).exists():
        _check_services(_read_yaml(folder, COMPOSE))
    tests = _read_tests(folder / TESTS)
    if test_file not in tests:
        raise ValueError(f"{RUN_TESTS} runs {TESTS}/{test_file}, which does not exist")
    return TerminalBenchTask(
        name=folder.name,
        solution=_read(folder / SOLUTION, MAX_TEXT_BYTES),
        tests=tests,
        test_file=test_file,
        **meant,
    )


def _settings(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a TerminalBenchTask that come from task.yaml."""
    for name in found:
        if name not in (*MEANT, *DESCRIPTIVE):
            near = difflib.get_close_matches(str(name), (*MEANT, *DESCRIPTIVE), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{TASK} has an unknown field {name!r:.80}{hint}")
    instruction = found.get("instruction")
    if not isinstance(instruction, str) or not instruction.strip():
        raise ValueError(f"{TASK} has no instruction text")
    if (parser := found.get("parser_name", "pytest")) != "pytest":
        raise ValueError(f"{TASK} has parser_name {parser!r:.80}; only 'pytest' can be judged here")
    if found.get("run_tests_in_same_shell", False) is not False:
        raise ValueError(
            f"{TASK} runs its tests in the agent's shell, where the agent could forge the result"
        )
    return {
        "instruction": instruction,
        "agent_seconds": _seconds(found, "max_agent_timeout_sec", AGENT_SECONDS),
        "test_seconds": _seconds(found, "max_test_timeout_sec", TEST_SECONDS),
    }


def _seconds(found: Mapping[str, Any], name: str, default: float) -> float:
    value = found.get(name, default)
    if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{TASK} has {name} {value!r:.80}; it must be a number of seconds")
    return float(value)


def _check_services(found: Mapping[str, Any]) -> None:
    services = found.get("services")
    if not isinstance(services, dict) or list(services) != ["client"]:
        raise ValueError(f"{COMPOSE} has services {services!r:.80}; only a 'client' can be played")


def _read_tests(folder: Path) -> dict[str, bytes]:
    if folder.is_symlink():  # the walk would follow it, see `_read`
        raise ValueError(f"{TESTS} is a link, not a folder")
    tests: dict[str, bytes] = {}
    left = MAX_TESTS_BYTES
    for parent, directories, names in os.walk(folder):
        for name in (*directories, *names):
            path = Path(parent, name)
            if stat.S_ISDIR(path.lstat().st_mode):
                continue
            if len(tests) == MAX_TEST_FILES:
                raise ValueError(f"{TESTS} has more than {MAX_TEST_FILES} files")
            tests[str(path.relative_to(folder))] = content = _read(path, left)
            left -= len(content)
    return tests


def _read_yaml(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(_read_text(folder, name))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold fields, holds {type(found).__name__}")
    return found


def _read_text(folder: Path, name: str) -> str:
    return _read(folder / name, MAX_TEXT_BYTES).decode()


def _read(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file. Links are refused, because they could lead to any file on this
    machine, and so are pipes, which have no end."""
    if not path.exists() and not path.is_symlink():
        raise ValueError(f"{path.name} is missing")
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path.name} is too large: at most {max_bytes} bytes are left for it")
    return content


def _by_number(name: str) -> tuple[int, str]:
    return (int(name) if name.isdecimal() else -1), name
