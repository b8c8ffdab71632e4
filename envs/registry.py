"""All families by name: how their tasks are played, and their oracles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from ale_jax.agent.api import Environment
from ale_jax.agent.tools import finish, render_tool_call
from ale_jax.envs.corridor import rooms
from ale_jax.envs.corridor.env import CorridorEnv
from ale_jax.envs.countdown import puzzle
from ale_jax.envs.countdown.env import CountdownEnv
from ale_jax.envs.shell import families as shell
from ale_jax.envs.shell.env import ShellEnv
from ale_jax.envs.shell.noisy_oracle import noisy
from ale_jax.records import Task
from ale_jax.sandbox.api import Sandbox


@dataclasses.dataclass(frozen=True)
class Kind:
    """Families that are played in the same way.

    families: their names; of corridors, which are named after their settings, only examples.
    is_in_sandbox: the sandbox holds the whole world, so that an agent's own program can play there.
    make_env: from a task and its sandbox, which is None if none is needed.
    oracle: the replies that solve the task, given family and seed. noisy: the same with errors that
    are corrected, in tasks of more than one turn. nothing: the reply that ends an episode without
    doing anything.
    """

    families: Collection[str]
    needs_sandbox: bool
    is_in_sandbox: bool
    make_env: Callable[[Task, Sandbox | None], Environment]
    oracle: Callable[[str, int], tuple[str, ...]]
    noisy: Callable[[str, int], tuple[str, ...]]
    nothing: str


def _shell_oracle(family: str, seed: int) -> tuple[str, ...]:
    return tuple(map(render_tool_call, shell.generate(family, seed).oracle))


def _shell_noisy(family: str, seed: int) -> tuple[str, ...]:
    return tuple(map(render_tool_call, noisy(shell.generate(family, seed).oracle, seed)))


def _corridor_oracle(family: str, seed: int) -> tuple[str, ...]:
    return tuple(map(render_tool_call, rooms.oracle(family, seed)))


def _corridor_noisy(family: str, seed: int) -> tuple[str, ...]:
    return tuple(map(render_tool_call, rooms.noisy_oracle(family, seed)))


def _countdown_oracle(family: str, seed: int) -> tuple[str, ...]:
    return (puzzle.generate(family, seed).solution,)


CORRIDORS = Kind(
    families=rooms.FAMILIES,
    needs_sandbox=True,
    is_in_sandbox=False,
    make_env=lambda task, sandbox: CorridorEnv(task.family, sandbox, task.split),
    oracle=_corridor_oracle,
    noisy=_corridor_noisy,
    nothing=render_tool_call(finish()),
)
KINDS = (
    Kind(
        families=shell.FAMILIES,
        needs_sandbox=True,
        is_in_sandbox=True,
        make_env=lambda task, sandbox: ShellEnv(task.family, sandbox, task.split),
        oracle=_shell_oracle,
        noisy=_shell_noisy,
        nothing=render_tool_call(finish()),
    ),
    Kind(
        families=puzzle.FAMILIES,
        needs_sandbox=False,
        is_in_sandbox=False,
        make_env=lambda task, sandbox: CountdownEnv(task.family, task.split),
        oracle=_countdown_oracle,
        noisy=_countdown_oracle,  # an error could not be corrected in a single turn
        nothing="",
    ),
    CORRIDORS,
)


def all_families() -> tuple[str, ...]:
    return tuple(family for kind in KINDS for family in kind.families)


def kind_of(family: str) -> Kind:
    """ValueError if there is no such family."""
    if family.startswith("corridor"):
        rooms.parse(family)
        return CORRIDORS
    for kind in KINDS:
        if family in kind.families:
            return kind
    raise ValueError(f"family {family!r} is unknown: choose one of {', '.join(all_families())}")


def needs_sandbox(task: Task) -> bool:
    return kind_of(task.family).needs_sandbox


def make_env(task: Task, sandbox: Sandbox | None) -> Environment:
    """sandbox: None only if the task needs none."""
    return kind_of(task.family).make_env(task, sandbox)
