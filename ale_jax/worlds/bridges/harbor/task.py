"""Puts a task together from its folder, whichever format that has."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from ale_jax.worlds.bridges.harbor.dockerfile import Layout, Source, layout_of, workdir_of
from ale_jax.worlds.bridges.harbor.legacy import LEGACY, read_legacy
from ale_jax.worlds.bridges.harbor.records import (
    SOLVE,
    TEST,
    Check,
    HarborTask,
    Phase,
    Place,
)
from ale_jax.worlds.bridges.harbor.separate import COMPOSE, DOCKERFILE, separate_sandbox
from ale_jax.worlds.bridges.harbor.settings import (
    SEPARATE,
    Settings,
    StepSettings,
    parse,
    with_published,
)
from ale_jax.worlds.bridges.harbor.trees import Tree, below, read_text, read_tree

SETTINGS, INSTRUCTION, TRAJECTORY = "task.toml", "instruction.md", "trajectory.json"
# Marks of benchmarks, by which a text is found in training corpora. No agent is told them.
CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


def read_tasks(sources: Sequence[Source], exclude: Collection[str] = ()) -> list[HarborTask]:
    """Returns the tasks of folders; those that `exclude` names are left out. ValueError if there
    are none, if a name in `exclude` is of none, or if tasks cannot be played, each with its reason.
    """
    if unknown := sorted(set(exclude) - {source.path.name for source in sources}):
        raise ValueError(f"exclude {', '.join(unknown)}: there are no such tasks")
    tasks, faults = [], []
    for source in sources:
        if source.path.name not in exclude:
            try:
                tasks.append(read_task(source))
            except ValueError as error:
                faults.append(str(error))
    if faults:
        raise ValueError("\n".join(faults))
    if not tasks:
        raise ValueError("there is no task; give the folder of which they are subfolders")
    return tasks


def read_task(source: Source) -> HarborTask:
    """Returns the task of a folder. ValueError, with folder, file and field, if it is damaged or
    cannot be played here."""
    try:
        names = {each.name for each in source.path.iterdir()}
        if SETTINGS in names:
            return _read_task(source)
        if LEGACY in names:
            return read_legacy(source)
        raise ValueError(f"there is neither {SETTINGS} nor {LEGACY}")
    except (ValueError, OSError) as error:
        raise ValueError(f"task {source.path}: {error}") from error


def _read_task(source: Source) -> HarborTask:
    text = read_text(source.path, SETTINGS)
    try:
        settings = parse(text)
        place = _place(source, settings)
        steps = settings.steps or (None,)
        phases = tuple(_phase(source, settings, place, step) for step in steps)
    except ValueError as error:
        raise ValueError(_located(str(error))) from None
    return HarborTask(
        name=source.path.name,
        place=place,
        phases=phases,
        final=settings.final,
        solution_env=settings.solution_env,
        metadata=settings.metadata,
    )


def _located(fault: str) -> str:
    """Returns a fault with its file: it is of task.toml if it names no other."""
    is_of_file = re.match(r"(?:environment|tests|steps|solution)/|instruction|trajectory", fault)
    return fault if is_of_file else f"{SETTINGS}: {fault}"


def _place(source: Source, settings: Settings) -> Place:
    machine, name = settings.machine, f"environment/{DOCKERFILE}"
    if (source.path / "environment" / COMPOSE).exists():
        raise ValueError(f"environment/{COMPOSE} makes more than one container, which is all here")
    has_dockerfile = (source.path / name).exists()
    image = machine.image or (source.image if has_dockerfile else "")
    if image:
        workdir = machine.workdir or (workdir_of(source.path, name) if has_dockerfile else "")
        loose = {} if has_dockerfile else read_tree(source.path, "environment")
        layout = Layout(workdir, {}, below(workdir, loose))
    elif has_dockerfile:
        layout = layout_of(source, name)
    else:
        raise ValueError(f"environment has neither docker_image nor {name}")
    workdir = machine.workdir or layout.workdir
    if workdir in ("", "/"):
        raise ValueError(
            f"environment.workdir {workdir!r} is not named, and by no Dockerfile: name a "
            "directory, as the root of a sandbox is read-only"
        )
    return Place(
        layout=Layout(workdir, {**layout.env, **machine.env}, layout.files),
        image=image,
        user=settings.agent.user or "root",
        cpus=machine.cpus,
        memory_mb=machine.memory_mb,
        storage_mb=machine.storage_mb,
        health=machine.health,
    )


def _phase(source: Source, settings: Settings, place: Place, step: StepSettings | None) -> Phase:
    path = f"steps/{step.name}/" if step else ""
    if (source.path / path / TRAJECTORY).exists():
        raise ValueError(f"{path}{TRAJECTORY} begins with what no policy has said here")
    agent = step.agent if step else settings.agent
    _check_users(settings, place, step)
    solution = read_tree(source.path, f"{path}solution") or read_tree(source.path, "solution")
    if solution and SOLVE not in solution:
        raise ValueError(f"{path}solution/{SOLVE} is missing")
    seconds = agent.seconds if agent.seconds is not None else settings.agent.seconds
    return Phase(
        name=step.name if step else "",
        instruction=_without_canary(read_text(source.path, f"{path}{INSTRUCTION}")),
        check=_check(source, settings, place, step),
        reach=agent.reach or settings.agent.reach or settings.machine.reach,
        prepared=read_tree(source.path, f"{path}workdir") if step else {},
        health=step.health if step else None,
        solution=solution or None,
        min_reward=step.min_reward if step else {},
        seconds=math.inf if seconds is None else seconds,
    )


def _check_users(settings: Settings, place: Place, step: StepSettings | None) -> None:
    users = [("verifier.user", settings.judging.user)]
    users += [("verifier.collect.user", hook.user) for hook in settings.judging.hooks]
    if step:
        users += [("steps.agent.user", step.agent.user), ("steps.verifier.user", step.judging.user)]
        users += [("steps.verifier.collect.user", hook.user) for hook in step.judging.hooks]
    for field, user in users:
        if user and user != place.user:
            raise ValueError(f"{field} {user!r} differs from that of the policy, {place.user!r}")


def _check(source: Source, settings: Settings, place: Place, step: StepSettings | None) -> Check:
    judging = step.judging if step else settings.judging
    both = (settings.judging, step.judging) if step else (settings.judging,)
    modes = [each.mode for each in both if each.mode]
    shared_tests = read_tree(source.path, "tests")
    own_tests = read_tree(source.path, f"steps/{step.name}/tests") if step else {}
    tests: Tree = {**shared_tests, **own_tests}
    where, reach = None, settings.machine.reach
    env = {name: value for each in both for name, value in each.env.items()}
    if modes[-1:] == [SEPARATE]:
        where = separate_sandbox(source, settings, place, step)
        tests = tests if where.tests is None else where.tests
        machine = next((each.machine for each in reversed(both) if each.machine), None)
        reach = machine.reach if machine else reach
        env = {**where.layout.env, **env}
    if TEST not in tests and not (where and where.image):
        raise ValueError(f"{f'steps/{step.name}/' if step else ''}tests/{TEST} is missing")
    artifacts = (*settings.artifacts, *(step.artifacts if step else ()))
    return Check(
        tests=tests,
        workdir=where.layout.workdir if where else place.layout.workdir,
        seconds=judging.seconds,
        env=env,
        reach=judging.reach or settings.judging.reach or reach,
        hooks=tuple(hook for each in both for hook in each.hooks),
        artifacts=with_published(artifacts, place.layout.workdir) if where else (),
        layout=where.layout if where else None,
        image=where.image if where else "",
    )


def _without_canary(text: str) -> str:
    lines = text.split("\n")
    while lines and CANARY.fullmatch(lines[0].strip()):
        lines.pop(0)
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)
