"""Task folders of terminal-bench, as they were before harbor's.

NAME/task.yaml, solution.sh, run-tests.sh, tests/..., Dockerfile, docker-compose.yaml
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ale_jax.worlds.bridges.harbor import scripts
from ale_jax.worlds.bridges.harbor.dockerfile import Layout, Source, layout_of, workdir_of
from ale_jax.worlds.bridges.harbor.fields import SHOWN, Fields
from ale_jax.worlds.bridges.harbor.records import (
    SOLVE,
    TESTS,
    Check,
    HarborTask,
    Phase,
    Place,
)
from ale_jax.worlds.bridges.harbor.trees import read_leaf, read_text, read_tree

LEGACY, SCRIPT, RUN_TESTS = "task.yaml", "solution.sh", "run-tests.sh"
DOCKERFILE, COMPOSE = "Dockerfile", "docker-compose.yaml"
AGENT_SECONDS, TEST_SECONDS = 360.0, 60.0  # terminal-bench's defaults
APP = "/app"
DESCRIPTIVE = (
    *("author", "author_name", "author_email", "difficulty", "category", "tags", "language"),
    *("disable_asciinema", "estimated_duration_sec"),
    *("expert_time_estimate_min", "junior_time_estimate_min"),
)


def read_legacy(source: Source) -> HarborTask:
    """Returns the task of a folder. ValueError for what is damaged or cannot be played."""
    folder = source.path
    found = _yaml(folder, LEGACY)
    try:
        told = _told(Fields(found))
    except ValueError as error:
        raise ValueError(f"{LEGACY}: {error}") from None
    test_file = scripts.test_file_of(read_text(folder, RUN_TESTS))
    tests = read_tree(folder, "tests")
    if test_file not in tests:
        raise ValueError(f"{RUN_TESTS} runs tests/{test_file}, which does not exist")
    layout = _layout(source)
    check = Check(
        tests=tests,
        workdir=layout.workdir,
        seconds=told["max_test_timeout_sec"],
        pytest=test_file,
        env={"TEST_DIR": TESTS},
    )
    phase = Phase(
        name="",
        instruction=told["instruction"],
        check=check,
        seconds=told["max_agent_timeout_sec"],
        solution={SOLVE: read_leaf(folder, SCRIPT)},
    )
    metadata = {k: v for k, v in found.items() if k in DESCRIPTIVE and isinstance(v, str | int)}
    return HarborTask(folder.name, Place(layout, source.image), (phase,), metadata=metadata)


def _told(fields: Fields) -> dict[str, Any]:
    instruction = fields.text("instruction")
    if not instruction.strip():
        raise ValueError("instruction is missing")
    fields.refuse("parser_name", "cannot judge here: only 'pytest' can", but=("pytest",))
    fields.refuse(
        "run_tests_in_same_shell",
        "runs the tests in the agent's shell, where the agent could forge the result",
        but=(False,),
    )
    fields.skip(*DESCRIPTIVE)
    told = {
        "instruction": instruction,
        "max_agent_timeout_sec": fields.seconds("max_agent_timeout_sec", AGENT_SECONDS),
        "max_test_timeout_sec": fields.seconds("max_test_timeout_sec", TEST_SECONDS),
    }
    fields.close()
    return told


def _layout(source: Source) -> Layout:
    folder = source.path
    if (folder / COMPOSE).exists():
        services = _yaml(folder, COMPOSE).get("services")
        if not isinstance(services, dict) or list(services) != ["client"]:
            told = SHOWN.repr(services)
            raise ValueError(f"{COMPOSE} has services {told}; only a 'client' is played")
    if not (folder / DOCKERFILE).exists():
        return Layout(APP)
    if source.image:
        return Layout(workdir_of(folder, DOCKERFILE) or APP)
    layout = layout_of(source, DOCKERFILE)
    return Layout(layout.workdir or APP, layout.env, layout.files)


def _yaml(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(read_text(folder, name))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold fields, holds {type(found).__name__}")
    return found
