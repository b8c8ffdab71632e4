"""The shell tasks: a policy reads and changes the files of a sandbox, and is judged at the end."""

from __future__ import annotations

from ale_jax.agent.tool_steps import has_failed, observation, play
from ale_jax.agent.tools import OFFERED, SYSTEM_PROMPT, finish, render_tool_call
from ale_jax.envs.shell.families import FAMILIES, generate
from ale_jax.envs.shell.noisy_oracle import noisy
from ale_jax.envs.shell.task import Goal, ShellTask
from ale_jax.envs.shell.verifier import verify
from ale_jax.sandbox import api
from ale_jax.sandbox.api import Sandbox, SandboxError, SandboxLost, SavedState
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.api import Step, VerifierError, World
from ale_jax.worlds.items import Item, Seeds


class Shell(World):
    """The reward is 1 for a solved task, and comes at the end."""

    families = dict.fromkeys(FAMILIES, Seeds())
    system_prompt, loop_tools = SYSTEM_PROMPT, OFFERED
    role = "tool"
    is_in_sandbox = True
    nothing = render_tool_call(finish())

    _sandbox: Sandbox

    def __init__(self) -> None:
        self._goal: Goal | None = None  # None before the first reset and after an episode's end

    def sandbox(self, item: Item, spec: SandboxSpec) -> SandboxSpec:
        """Returns the run's: all tasks need one."""
        return spec

    def oracle(self, item: Item) -> tuple[str, ...]:
        """Returns the calls that solve the task."""
        return tuple(map(render_tool_call, _task(item).oracle))

    def noisy_oracle(self, item: Item) -> tuple[str, ...]:
        """Returns the same with errors that are corrected."""
        return tuple(map(render_tool_call, noisy(_task(item).oracle, item.seed)))

    def reset(self, item: Item, sandbox: Sandbox | None) -> str:
        """Writes the task's files and returns its instruction."""
        assert sandbox is not None, "a shell task is played in a sandbox"
        task = _task(item)
        sandbox.reset()
        try:
            sandbox.write(task.files)
        except OSError as error:  # it is as new, so this is not the agent's doing
            raise SandboxLost(f"an empty sandbox does not take its files: {error}") from error
        self._sandbox, self._goal = sandbox, task.goal
        return task.instruction

    def step(self, reply: str) -> Step:
        """See `tool_steps.play`."""
        assert self._goal is not None, "step needs a reset after the end of an episode"
        return play(reply, self._run, self.grade)

    def grade(self, answer: str | None = None) -> float:
        """Judges the current state. Without an answer, a task that asks for one earns nothing."""
        assert self._goal is not None, "grade needs a reset after the end of an episode"
        goal, self._goal = self._goal, None
        try:
            return float(verify(goal, self._sandbox, answer))
        except SandboxError as error:
            raise VerifierError(f"sandbox failed under the verifier: {error}") from error

    def save(self) -> SavedState | None:
        """Saves the sandbox's state."""
        return api.save(self._sandbox)

    def load(self, item: Item, sandbox: Sandbox | None, saved: SavedState) -> bool:
        """Restores the sandbox's state."""
        assert sandbox is not None, "a shell task is played in a sandbox"
        whole = api.load(sandbox, saved)
        self._sandbox, self._goal = sandbox, _task(item).goal if whole else None
        return whole

    def _run(self, command: str) -> tuple[str, bool]:
        result = self._sandbox.run(command)
        return observation(result), has_failed(result)


def _task(item: Item) -> ShellTask:
    return generate(item.family, item.seed)
