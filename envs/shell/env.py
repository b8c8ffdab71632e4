"""A shell task as an environment with GEM's contract: text in, text out, the reward at the end."""

from __future__ import annotations

import operator
from typing import Any

from ale_jax.agent.api import VerifierError
from ale_jax.agent.tools import ToolCallError, parse_tool_call
from ale_jax.sandbox import saved_state
from ale_jax.sandbox.api import ExecResult, Sandbox, SandboxError
from ale_jax.sandbox.saved_state import SavedState
from envs.shell.families import SPLITS, generate
from envs.shell.verifier import verify
from envs.shell.world import World


class ShellEnv:
    """The tasks of one family in a sandbox that the caller owns; reset as often as wanted."""

    def __init__(self, family: str, sandbox: Sandbox, split: str):
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}, expected one of: {', '.join(SPLITS)}")
        self._family = family
        self._sandbox = sandbox
        self._split = split
        self._world: World | None = None  # None before the first reset and after an episode's end

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Builds the world of `seed` and returns its instruction.

        Raises:
          ValueError: the seed belongs to another split.
          SandboxError: the sandbox could not be made ready.
        """
        world = self._generate(seed)
        self._sandbox.reset()
        self._sandbox.write(world.files)
        self._world = world
        return world.instruction, {}

    def save(self) -> SavedState | None:
        """The sandbox as it stands. Errors: SandboxError."""
        return saved_state.save(self._sandbox)

    def load(self, seed: int, saved: SavedState) -> bool:
        """As `agent.api.Environment.load`. Errors: as of `reset`."""
        world = self._generate(seed)
        whole = saved_state.load(self._sandbox, saved)
        self._world = world if whole else None
        return whole

    def _generate(self, seed: int) -> World:
        seed, seeds = operator.index(seed), SPLITS[self._split]
        if seed not in seeds:
            raise ValueError(
                f"seed {seed} is not of split {self._split!r}: take {seeds.start}..{seeds.stop - 1}"
            )
        return generate(self._family, seed)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays the tool call in `action`, the policy's raw text.

        Returns observation, reward (0.0 until the end), terminated, truncated (never: limits are
        the caller's) and info, where `malformed` says that there was no valid call.

        Raises:
          SandboxError: the sandbox failed.
          VerifierError: the outcome could not be judged.
        """
        assert self._world is not None, "step needs a reset after the end of an episode"
        try:
            call = parse_tool_call(action)
        except ToolCallError as error:
            return f"error: {error}", 0.0, False, False, {"malformed": True}
        if call.name == "finish":
            return "", self._judge(call.arguments["answer"]), True, False, {"malformed": False}
        result = self._sandbox.run(call.arguments["command"])
        return observation(result), 0.0, False, False, {"malformed": False}

    def close(self) -> None:
        """Nothing is left to do: the sandbox is the caller's."""
        self._world = None

    def grade(self) -> float:
        """The reward of the state as it stands: without an answer, an answer task earns nothing."""
        assert self._world is not None, "grade needs a reset after the end of an episode"
        return self._judge(None)

    def _judge(self, answer: str | None) -> float:
        goal, self._world = self._world.goal, None
        try:
            return float(verify(goal, self._sandbox, answer))
        except SandboxError as error:
            raise VerifierError(f"sandbox failed under the verifier: {error}") from error


def observation(result: ExecResult) -> str:
    """What the policy is shown of a command."""
    notes = []
    if result.omitted_bytes:
        notes.append(f"[{result.omitted_bytes} bytes left out]")
    if result.timed_out:
        notes.append("[timed out]")
    elif result.exit_code != 0:
        notes.append(f"[exit {result.exit_code}]")
    return "\n".join([result.output.rstrip("\n") or "(no output)", *notes])
