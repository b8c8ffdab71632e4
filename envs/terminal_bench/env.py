"""Tasks of terminal-bench as a GEM environment, and the check of a task with its own solution and
with no action."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ale_jax.agent.api import NoVerdictError, VerifierError
from ale_jax.agent.tools import SYSTEM_PROMPT
from ale_jax.envs.terminal_bench.task import TerminalBenchTask
from ale_jax.envs.tool_steps import Step, has_failed, observation, play
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


class TerminalBenchEnv:
    """Tasks in a sandbox that the caller owns, started with SPEC. It can be reset any number of
    times."""

    system_prompt = SYSTEM_PROMPT

    def __init__(self, tasks: Sequence[TerminalBenchTask], sandbox: JudgedSandbox):
        """ValueError, with the command that installs it, if the sandbox has no pytest."""
        if not has_pytest(sandbox):
            raise ValueError(f"the sandbox has no pytest to judge with: {REMEDY}")
        self._tasks = tasks
        self._sandbox = sandbox
        self._task: TerminalBenchTask | None = None  # None before a reset and after an episode

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Prepares the sandbox for task number `seed` and returns its instruction.

        Raises:
          ValueError: there is no such task.
          SandboxError: the sandbox could not be prepared.
        """
        seed = operator.index(seed)
        if not 0 <= seed < len(self._tasks):
            raise ValueError(f"seed {seed} is none of the {len(self._tasks)} tasks: take 0 or more")
        self._prepare()
        self._sandbox.run(f"cd {APP}")
        self._task = self._tasks[seed]
        return self._task.instruction, {"task": self._task.name}

    def step(self, action: str) -> Step:
        """See `tool_steps.play`."""
        assert self._task is not None, "step needs a reset after the end of an episode"
        return play(action, self._run, self.grade)

    def grade(self, answer: str | None = None) -> float:
        """The reward of the current state: 1 if all tests pass, else 0. Ends the episode.
        answer: no task asks for one.

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

    def solve(self) -> None:
        """Acts as the oracle: runs the task's solution in the agent's session."""
        assert self._task is not None, "solve needs a reset"
        self._sandbox.write({"solution.sh": self._task.solution})
        self._sandbox.run(f"bash {WORK}/solution.sh", timeout=self._task.agent_seconds)


def score(task: TerminalBenchTask, sandbox: JudgedSandbox, oracle: bool) -> float:
    """The reward of the oracle, or of no action. Errors: SandboxError, those of `grade`."""
    env = TerminalBenchEnv([task], sandbox)
    env.reset(0)
    if oracle:
        env.solve()
    return env.grade()
