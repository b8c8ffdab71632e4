"""Tasks in terminal-bench's format."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ale_jax.agent.tools import SYSTEM_PROMPT, finish, render_tool_call
from ale_jax.envs.terminal_bench.task import TerminalBenchTask, read_tasks
from ale_jax.envs.tool_steps import has_failed, observation, play, script_replies
from ale_jax.sandbox.api import JudgedSandbox, SandboxError, SandboxLost
from ale_jax.sandbox.spec import WORK, SandboxSpec
from ale_jax.sandbox.verify.verifier import (
    REMEDY,
    REPORT,
    TESTS,
    has_pytest,
    judge,
    pytest_verifier,
)
from ale_jax.worlds.api import NoVerdictError, Step, VerifierError, World
from ale_jax.worlds.finite import Finite, Row, divided
from ale_jax.worlds.items import Item, Name

APP = "/app"
# Tests and report have separate file systems, so that an agent that fills its disk cannot prevent
# them from being written.
WRITABLE = (APP, TESTS, REPORT)
SPEC = SandboxSpec(
    user="root",
    memory_mb=512,
    pids=128,
    files_mb=32,
    writable=WRITABLE,
    command_seconds=60.0,
)


@dataclasses.dataclass(frozen=True)
class TaskFolders(Finite):
    """The tasks in a folder, of which those that their names choose are only evaluated."""

    eval_share: float = 0.2

    def read(self) -> Mapping[str, Mapping[Name, Row]]:
        """Returns the tasks by split and name. ValueError as `read_tasks`."""
        tasks = read_tasks(self.folder / self.path)
        rows: dict[Name, Row] = {task.name: {"task": task} for task in tasks}
        return divided(rows, {name: str(name).encode() for name in rows}, self.eval_share)

    def digest(self) -> str:
        """Returns a digest of all files."""
        digest, folder = hashlib.sha256(), self.folder / self.path
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
        return digest.hexdigest()


class TerminalBench(World):
    """The reward is 1 if all tests pass, and comes at the end."""

    system_prompt = SYSTEM_PROMPT
    role = "tool"
    is_in_sandbox = True
    nothing = render_tool_call(finish())

    _sandbox: JudgedSandbox

    def __init__(self, folder: str):
        """folder: holds the folders of the tasks; its name is that of their family."""
        self.families = {Path(folder).resolve().name: TaskFolders(folder)}
        self._task: TerminalBenchTask | None = None  # None before a reset and after an episode

    def sandbox(self, item: Item, spec: SandboxSpec) -> SandboxSpec:
        """Returns SPEC, with image, network and runtime of the run."""
        return dataclasses.replace(
            SPEC, image=spec.image, network=spec.network, runtime=spec.runtime
        )

    def oracle(self, item: Item) -> Sequence[str]:
        """Returns the replies of an agent that runs the task's solution."""
        return script_replies(item["task"].solution, f"{WORK}/solution.sh")

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str:
        """Prepares the sandbox and returns the task's instruction. ValueError, with the command
        that installs it, if the sandbox has no pytest."""
        assert sandbox, "a task is played in a sandbox"
        if not has_pytest(sandbox):
            raise ValueError(f"the sandbox has no pytest to judge with: {REMEDY}")
        self._sandbox = sandbox
        self._prepare()
        sandbox.run(f"cd {APP}")
        self._task = item["task"]
        return self._task.instruction

    def step(self, reply: str) -> Step:
        """See `tool_steps.play`."""
        assert self._task is not None, "step needs a reset after the end of an episode"
        return play(reply, self._run, self.grade)

    def grade(self, answer: str | None = None) -> float:
        """Returns 1.0 if all tests pass. answer: no task asks for one.

        Raises:
          NoVerdictError: the tests have no verdict on this state, but one on the untouched task.
          VerifierError: the state could not be judged.
        """
        assert self._task is not None, "grade needs a reset after the end of an episode"
        task, self._task = self._task, None
        verifier = pytest_verifier(task.tests, [task.test_file], APP, task.test_seconds)
        try:
            judgement = judge(self._sandbox, verifier, self._prepare)
        except (SandboxError, OSError) as error:
            raise VerifierError(f"task {task.name}: {error}") from error
        if judgement.no_verdict:
            raise NoVerdictError(f"task {task.name}: {judgement.no_verdict}")
        return judgement.reward

    def _run(self, command: str) -> tuple[str, bool]:
        result = self._sandbox.run(command)
        return observation(result), has_failed(result)

    def _prepare(self) -> None:
        """Brings the sandbox into the initial state, which is that of all tasks."""
        self._sandbox.reset()
        try:
            for directory in WRITABLE:
                self._sandbox.replace_directory(directory, {})
        except OSError as error:  # it is as new, so this is not the agent's doing
            raise SandboxLost(f"an empty sandbox takes no directories: {error}") from error
