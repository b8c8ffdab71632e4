"""The world of task folders: each task is an item, and its solution is the oracle."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ale_jax.agent.tool_steps import called, file_commands, has_failed, observation
from ale_jax.agent.tools import OFFERED, SYSTEM_PROMPT, bash, finish, render_tool_call
from ale_jax.sandbox.api import JudgedSandbox, SandboxStartError
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.verify.verifier import REMEDY, REWARD, has_pytest
from ale_jax.worlds.api import Message, Rewards, Step, World
from ale_jax.worlds.bridges.harbor.dockerfile import Source
from ale_jax.worlds.bridges.harbor.judging import judged
from ale_jax.worlds.bridges.harbor.place import OPEN, Room, enter, prepare, prove_images, spec_of
from ale_jax.worlds.bridges.harbor.records import SOLUTION, SOLVE, HarborTask, Phase
from ale_jax.worlds.bridges.harbor.registry import task_folders
from ale_jax.worlds.bridges.harbor.rewards import ByName, falls_short, paid, total
from ale_jax.worlds.bridges.harbor.task import read_tasks
from ale_jax.worlds.finite import Finite, Row, divided
from ale_jax.worlds.items import Item, Name

ROOM = Room()
NEXT = "This step has ended, and the next one follows."


@dataclasses.dataclass(frozen=True)
class TaskFolders(Finite):
    """The tasks that `path` has, of which those that their names choose are only evaluated.
    dataset: as of `task_folders`. images, installed: as of `Harbor`. exclude: as of `read_tasks`.
    room: as of `spec_of`."""

    eval_share: float = 0.2
    dataset: str = ""
    images: str = ""
    installed: bool = False
    exclude: tuple[str, ...] = ()
    room: Room = ROOM

    def read(self) -> Mapping[str, Mapping[Name, Row]]:
        """Returns the tasks by split and name. ValueError as `task_folders` and `read_tasks`, and
        for a task of which there can be no sandbox."""
        sources = [
            Source(each, self.images.replace("{task}", each.name.lower()), self.installed)
            for each in self._folders
        ]
        tasks = read_tasks(sources, self.exclude)
        for task in tasks:
            spec_of(task, SandboxSpec(network=OPEN), self.room)
        rows: dict[Name, Row] = {task.name: _row(task) for task in tasks}
        return divided(rows, {name: str(name).encode() for name in rows}, self.eval_share)

    def digest(self) -> str:
        """Returns a digest of all files."""
        digest = hashlib.sha256()
        for folder in self._folders:
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                if not file.is_symlink():  # which no task may have, and may lead anywhere
                    digest.update(f"{folder.name}/{file.relative_to(folder)} ".encode())
                    digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest()

    @property
    def _folders(self) -> list[Path]:
        return task_folders(self.folder / self.path, self.dataset)


def _row(task: HarborTask) -> Row:
    told = "\n".join(phase.instruction for phase in task.phases)
    return {"instruction": told, "metadata": dict(task.metadata), "task": task}


@dataclasses.dataclass(eq=False)
class Harbor(World):
    """The tasks of a folder. The reward comes at the end; in a task of several steps it is their
    mean, or the last one's. `finish` ends a step, and so does the end of its time.

    folder: holds the folders of the tasks, and names their family; with `dataset`, which then names
    it, the file of a registry. dataset: as of `task_folders`. images: the image of a task that has
    none but a Dockerfile, with {task} for its name, such as host:5000/set/{task}; "" to lay
    Dockerfiles out in the image of the run. installed: the image has what Dockerfiles install, for
    a separate verifier as well, so that such lines are passed over. exclude: names of tasks that
    are left out. eval_share: of the tasks, those that are only evaluated; their names choose them.
    files_mb, memory_mb, writable, command_seconds: as of `Room`.
    """

    folder: str
    dataset: str = ""
    images: str = ""
    installed: bool = False
    exclude: Sequence[str] = ()
    eval_share: float = 0.2
    files_mb: int = Room.files_mb
    memory_mb: int = Room.memory_mb
    writable: Sequence[str] = ()
    command_seconds: float = Room.command_seconds

    system_prompt, loop_tools = SYSTEM_PROMPT, OFFERED
    role = "tool"
    is_in_sandbox = True
    nothing = render_tool_call(finish())

    def __post_init__(self) -> None:
        self._room = Room(self.files_mb, self.memory_mb, tuple(self.writable), self.command_seconds)
        items = TaskFolders(
            self.folder,
            eval_share=self.eval_share,
            dataset=self.dataset,
            images=self.images,
            installed=self.installed,
            exclude=tuple(self.exclude),
            room=self._room,
        )
        family = self.dataset.partition("@")[0] or Path(self.folder).resolve().name
        self.families = {family: items}
        self._number: int | None = None  # of the phase; None before a reset and after an episode
        self._found: list[ByName] = []  # the rewards of the phases that were judged
        self._seconds = 0.0

    def sandbox(self, item: Item, spec: SandboxSpec) -> SandboxSpec:
        """Returns the sandbox that a task asks for, with runtime and network of the run, and its
        image where the task has none. ValueError for hosts that the run does not allow."""
        return spec_of(item["task"], spec, self._room)

    def oracle(self, item: Item) -> Sequence[str] | None:
        """Returns the replies of an agent that runs the solution of each step; None if one has
        none."""
        task: HarborTask = item["task"]
        if any(phase.solution is None for phase in task.phases):
            return None
        return tuple(reply for phase in task.phases for reply in _solving(task, phase))

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str:
        """Prepares the sandbox and returns the instruction of the first step. ValueError, with the
        command that installs it, if pytest is needed and not there."""
        assert sandbox, "a task is played in a sandbox"
        task: HarborTask = item["task"]
        if any(phase.check.pytest for phase in task.phases) and not has_pytest(sandbox):
            raise ValueError(f"the sandbox has no pytest to judge with: {REMEDY}")
        prove_images(sandbox, task)
        if fault := prepare(sandbox, task, 0):
            raise SandboxStartError(f"task {task.name}: {fault}")
        self._sandbox, self._task, self._number = sandbox, task, 0
        self._found, self._seconds = [], 0.0
        return task.phases[0].instruction

    def step(self, reply: str) -> Step:
        """Runs the command of a reply, or judges the step that it finishes. Commands that take
        longer than the step's time together end it: the policy's own time depends on the machine
        that trains it, and does not count."""
        phase = self._phase()
        call = called(reply)
        if isinstance(call, Step):
            return call
        if call.name == finish().name:
            return self._ended()
        left = phase.seconds - self._seconds
        limit = min(left, self._sandbox.spec.command_seconds)
        result = self._sandbox.run(call.arguments["command"], limit)
        self._seconds += result.seconds
        if math.isfinite(left) and self._seconds >= phase.seconds:
            return self._ended()
        return Step(observation(result), failed=has_failed(result))

    def grade(self, answer: str | None = None) -> Rewards:
        """Returns what the task earns if its current step is the last. answer: of a program, which
        is told one instruction alone; ValueError for a task of several steps."""
        number, self._number = self._number, None
        assert number is not None, "grade needs a reset after the end of an episode"
        if answer is not None and len(self._task.phases) > 1:
            raise ValueError(
                f"task {self._task.name}: steps: a program plays tasks of one step: exclude it"
            )
        self._found.append(self._judged(number))
        return self._paid()

    def metrics(self) -> Mapping[str, float]:
        """Returns the rewards that do not count beside one that is called "reward"."""
        rewards = total(self._found, self._task.final) if self._found else {}
        return {n: r for n, r in rewards.items() if REWARD in rewards and n != REWARD}

    def _ended(self) -> Step:
        """Judges the current step, and begins the next one if there is one."""
        number, self._number = self._number, None
        assert number is not None
        rewards = self._judged(number)
        self._found.append(rewards)
        phases = self._task.phases
        if number + 1 < len(phases) and not falls_short(rewards, phases[number].min_reward):
            following = phases[number + 1]
            if not enter(self._sandbox, self._task, following):
                self._number, self._seconds = number + 1, 0.0
                return Step([Message("tool", NEXT), Message("user", following.instruction)])
        return Step(reward=self._paid(), done=True)

    def _paid(self) -> Rewards:
        return paid(total(self._found, self._task.final))

    def _judged(self, number: int) -> ByName:
        return judged(self._sandbox, self._task, number)

    def _phase(self) -> Phase:
        assert self._number is not None, "step needs a reset after the end of an episode"
        return self._task.phases[self._number]


def _solving(task: HarborTask, phase: Phase) -> Iterator[str]:
    """Yields the replies that write a solution, run it as harbor does, and finish."""
    assert phase.solution is not None
    for path, leaf in phase.solution.items():
        for command in file_commands(leaf.content, f"{SOLUTION}/{path}", leaf.is_executable):
            yield render_tool_call(bash(command))
    env = task.solution_env
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
    script = f"{SOLUTION}/{SOLVE}"
    command = f"chmod +x {script}; {variables}{script} < /dev/null"
    yield render_tool_call(bash(command))
    yield render_tool_call(finish())
