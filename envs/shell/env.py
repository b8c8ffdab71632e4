"""A shell task as a GEM environment: text in, text out, and the reward at the end."""

from __future__ import annotations

import operator
from typing import Any

from ale_jax.agent.api import VerifierError
from ale_jax.agent.tools import SYSTEM_PROMPT, ToolCallError, parse_tool_call
from ale_jax.sandbox import api
from ale_jax.sandbox.api import ExecResult, Sandbox, SandboxError, SandboxLost, SavedState
from envs.shell.families import generate
from envs.shell.verifier import verify
from envs.shell.world import World
from envs.splits import require_seed, require_split


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

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays the tool call in `action`, the policy's raw text.

        Returns observation, reward (0.0 until the end), terminated, truncated (never, as the caller
        sets limits) and info. info["malformed"]: there was no valid call. info["failed"]: there was
        no valid call, or its command ended with an error or timed out.

        Raises:
          SandboxError: the sandbox failed.
          VerifierError: the outcome could not be judged.
        """
        assert self._world is not None, "step needs a reset after the end of an episode"
        try:
            call = parse_tool_call(action)
        except ToolCallError as error:
            return f"error: {error}", 0.0, False, False, {"malformed": True, "failed": True}
        if call.name == "finish":
            reward = self._judge(call.arguments["answer"])
            return "", reward, True, False, {"malformed": False, "failed": False}
        result = self._sandbox.run(call.arguments["command"])
        failed = result.timed_out or result.exit_code != 0
        return observation(result), 0.0, False, False, {"malformed": False, "failed": failed}

    def close(self) -> None:
        """Leaves the sandbox open, because the caller owns it."""
        self._world = None

    def grade(self, answer: str | None = None) -> float:
        """The reward of the current state. Without an answer, a task that asks for one earns
        nothing."""
        assert self._world is not None, "grade needs a reset after the end of an episode"
        return self._judge(answer)

    def _judge(self, answer: str | None) -> float:
        goal, self._world = self._world.goal, None
        try:
            return float(verify(goal, self._sandbox, answer))
        except SandboxError as error:
            raise VerifierError(f"sandbox failed under the verifier: {error}") from error


def observation(result: ExecResult) -> str:
    """The observation that the policy gets of a command's result."""
    notes = []
    if result.omitted_bytes:
        notes.append(f"[{result.omitted_bytes} bytes left out]")
    if result.timed_out:
        notes.append("[timed out]")
    elif result.exit_code != 0:
        notes.append(f"[exit {result.exit_code}]")
    return "\n".join([result.output.rstrip("\n") or "(no output)", *notes])
