"""A shell task as a GEM environment: text in, text out, and the reward at the end."""

from __future__ import annotations

import operator
from typing import Any

from ale_jax.agent.api import VerifierError
from ale_jax.agent.tools import SYSTEM_PROMPT
from ale_jax.envs.shell.families import generate
from ale_jax.envs.shell.verifier import verify
from ale_jax.envs.shell.world import World
from ale_jax.envs.splits import require_seed, require_split
from ale_jax.envs.tool_steps import Step, has_failed, observation, play
from ale_jax.sandbox import api
from ale_jax.sandbox.api import Sandbox, SandboxError, SandboxLost, SavedState


class ShellEnv:
    """The tasks of one family, in a sandbox that the caller owns. It can be reset any number of
    times."""

    system_prompt = SYSTEM_PROMPT

    def __init__(self, family: str, sandbox: Sandbox, split: str):
        self._family = family
        self._sandbox = sandbox
        self._split = require_split(split)
        self._world: World | None = None  # None before the first reset and after an episode's end

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Builds the world of `seed` and returns its instruction.

        Raises:
          ValueError: the seed belongs to another split.
          SandboxError: the sandbox could not be prepared.
        """
        world = self._generate(seed)
        self._sandbox.reset()
        try:
            self._sandbox.write(world.files)
        except OSError as error:  # it is as new, so this is not the agent's doing
            raise SandboxLost(f"an empty sandbox does not take its files: {error}") from error
        self._world = world
        return world.instruction, {}

    def save(self) -> SavedState | None:
        """Saves the sandbox's state. Errors: SandboxError."""
        return api.save(self._sandbox)

    def load(self, seed: int, saved: SavedState) -> bool:
        """See `agent.api.Environment.load`. Errors: those of `reset`."""
        world = self._generate(seed)
        whole = api.load(self._sandbox, saved)
        self._world = world if whole else None
        return whole

    def _generate(self, seed: int) -> World:
        return generate(self._family, require_seed(operator.index(seed), self._split))

    def step(self, action: str) -> Step:
        """See `tool_steps.play`.

        Raises:
          SandboxError: the sandbox failed.
          VerifierError: the outcome could not be judged.
        """
        assert self._world is not None, "step needs a reset after the end of an episode"
        return play(action, self._run, self._judge)

    def close(self) -> None:
        """Leaves the sandbox open, because the caller owns it."""
        self._world = None

    def grade(self, answer: str | None = None) -> float:
        """The reward of the current state. Without an answer, a task that asks for one earns
        nothing."""
        assert self._world is not None, "grade needs a reset after the end of an episode"
        return self._judge(answer)

    def _run(self, command: str) -> tuple[str, bool]:
        result = self._sandbox.run(command)
        return observation(result), has_failed(result)

    def _judge(self, answer: str | None) -> float:
        goal, self._world = self._world.goal, None
        try:
            return float(verify(goal, self._sandbox, answer))
        except SandboxError as error:
            raise VerifierError(f"sandbox failed under the verifier: {error}") from error
