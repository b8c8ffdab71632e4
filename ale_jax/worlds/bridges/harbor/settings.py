"""What task.toml says, in the words of `records`; what cannot be played is refused by its field."""

from __future__ import annotations

import dataclasses
import math
import posixpath
import re
import tomllib
from collections.abc import Sequence

from ale_jax.sandbox.spec import USERS
from ale_jax.worlds.bridges.harbor.fields import Fields
from ale_jax.worlds.bridges.harbor.machine import (
    Machine,
    check_alike,
    read_command,
    read_health,
    read_machine,
    read_reach,
)
from ale_jax.worlds.bridges.harbor.records import PUBLISHED, Artifact, Health, Hook, Reach

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
SHARED, SEPARATE = "shared", "separate"
ONE = "is not the one container in which a task is played"
PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
STEP = re.compile(r"[^<>:\"/\\|?*\x00-\x1f\x7f]{1,255}(?<![. ])")


@dataclasses.dataclass(frozen=True)
class Agent:
    seconds: float | None
    user: str
    reach: Reach | None


@dataclasses.dataclass(frozen=True)
class Judging:
    """The table `verifier`. mode: "" if it does not say."""

    seconds: float
    env: dict[str, str]
    user: str
    reach: Reach | None
    mode: str
    machine: Machine | None
    hooks: tuple[Hook, ...]


@dataclasses.dataclass(frozen=True)
class StepSettings:
    name: str
    agent: Agent
    judging: Judging
    min_reward: dict[str, float]
    health: Health | None
    artifacts: tuple[Artifact, ...]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The whole file."""

    machine: Machine
    agent: Agent
    judging: Judging
    steps: tuple[StepSettings, ...]
    final: bool
    artifacts: tuple[Artifact, ...]
    solution_env: dict[str, str]
    metadata: dict[str, str | int | float]


def parse(text: str) -> Settings:
    """Returns what a task.toml says. ValueError, with the field, for what is wrong or cannot be
    played."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"is no TOML: {error!s:.200}") from None
    top = Fields(values)
    version = top.text("schema_version") or top.text("version") or VERSIONS[-1]
    if version not in VERSIONS:
        raise ValueError(f"schema_version {version!r:.80} must be one of {', '.join(VERSIONS)}")
    machine = read_machine(top.table("environment"))
    steps = tuple(_step(table, machine) for table in top.tables("steps"))
    if len({step.name.casefold() for step in steps}) < len(steps):
        raise ValueError(f"steps {[step.name for step in steps]!r:.200} names one twice")
    strategy = top.choice("multi_step_reward_strategy", ("mean", "final"), "mean")
    solution = top.table("solution")
    found = Settings(
        machine=machine,
        agent=_agent(top.table("agent")),
        judging=_judging(top.table("verifier"), machine),
        steps=steps,
        final=strategy == "final",
        artifacts=_artifacts(top),
        solution_env=solution.variables("env"),
        metadata=_metadata(top),
    )
    solution.close()
    top.close()
    return found


def _agent(table: Fields) -> Agent:
    seconds = table.seconds("timeout_sec", math.inf)
    found = Agent(None if math.isinf(seconds) else seconds, _user(table), read_reach(table))
    table.close()
    return found


def _judging(table: Fields, agents: Machine) -> Judging:
    mode = table.choice("environment_mode", (SHARED, SEPARATE))
    machine = None
    if table.has("environment"):
        if mode == SHARED:
            raise table.wrong("environment_mode", "contradicts verifier.environment")
        machine = read_machine(table.table("environment"))
        mode = SEPARATE
        if machine.health:
            inner = table.table("environment")
            raise inner.wrong("healthcheck", "has nothing to wait for: the verifier has no service")
        check_alike(machine, agents, table.name("environment"))
    table.skip("environment")
    found = Judging(
        seconds=table.seconds("timeout_sec", 600.0),
        env=table.variables("env"),
        user=_user(table),
        reach=read_reach(table),
        mode=mode,
        machine=machine,
        hooks=tuple(map(_hook, table.tables("collect"))),
    )
    table.close()
    return found


def _step(table: Fields, machine: Machine) -> StepSettings:
    name = table.text("name")
    if not STEP.fullmatch(name):
        raise table.wrong("name", "must be the name of a folder in steps/")
    found = StepSettings(
        name=name,
        agent=_agent(table.table("agent")),
        judging=_judging(table.table("verifier"), machine),
        min_reward=table.thresholds("min_reward"),
        health=read_health(table),
        artifacts=_artifacts(table),
    )
    table.close()
    return found


def _hook(table: Fields) -> Hook:
    table.refuse("service", ONE, but=("main",))
    found = Hook(read_command(table), table.seconds("timeout_sec", 60.0), _user(table))
    table.close()
    return found


def _artifacts(parent: Fields) -> tuple[Artifact, ...]:
    found = []
    for table in parent.tables("artifacts"):
        source = table.text("source")
        if not source or "\0" in source or ".." in source.split("/"):
            raise table.wrong("source", "must be a path, without '..'")
        table.refuse("service", ONE, but=("main",))
        target = table.text("destination")  # on the host, where nothing is collected
        if target.startswith("/") or "\\" in target or ".." in target.split("/"):
            raise table.wrong("destination", "must be a relative path, without '..'")
        found.append(Artifact(source, table.texts("exclude")))
        table.close()
    return tuple(found)


def with_published(artifacts: Sequence[Artifact], workdir: str) -> tuple[Artifact, ...]:
    """Returns artifacts with absolute sources, and the directory that is always one."""
    found = [
        dataclasses.replace(each, source=posixpath.normpath(posixpath.join(workdir, each.source)))
        for each in artifacts
    ]
    if not any(each.source == PUBLISHED for each in found):
        found.insert(0, Artifact(PUBLISHED))
    return tuple(found)


def _user(table: Fields) -> str:
    """Returns "root", "agent", or "" if the file does not say."""
    if type(table.raw("user")) is not int:
        return table.choice("user", USERS)
    if table.raw("user") != 0:
        raise table.wrong("user", "is unknown: a sandbox has the users root and agent")
    return "root"


def _metadata(top: Fields) -> dict[str, str | int | float]:
    """Returns what is told of a task in one word or number, and checks the rest of what is told."""
    if top.has("task"):
        task = top.table("task")
        if not PACKAGE.fullmatch(task.text("name")):
            raise task.wrong("name", "must be ORGANISATION/NAME")
        authors = task.raw("authors") or []
        if not isinstance(authors, list) or not all(isinstance(each, dict) for each in authors):
            raise task.wrong("authors", "must be a list of tables")
    top.skip("task", "source")
    told = top.raw("metadata")
    if told is not None and not isinstance(told, dict):
        raise top.wrong("metadata", "must be a table")
    return {k: v for k, v in (told or {}).items() if isinstance(v, str | int | float)}
