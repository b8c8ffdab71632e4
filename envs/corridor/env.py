"""A corridor as a GEM environment: the agent acts in a sandbox, and the doors are outside of it.

After each command the environment reads the file `door`, empties it, and lets the agent through at
most one door. Which rooms follow and which doors are right is never in the sandbox, so that there
is nothing to be read ahead, tried out, or written there that would win.
"""

from __future__ import annotations

import operator
from typing import Any

from ale_jax.agent.tools import SYSTEM_PROMPT
from ale_jax.envs.corridor.rooms import DOOR_FILE, Rooms, generate, parse
from ale_jax.envs.splits import require_seed, require_split
from ale_jax.envs.tool_steps import Step, has_failed, observation, play
from ale_jax.sandbox.api import ExecResult, Sandbox, SandboxLost

END = "the end"
LOCKED = "locked"
UNKNOWN = "no such door"


class CorridorEnv:
    """The tasks of one family, in a sandbox that the caller owns. It can be reset any number of
    times. ValueError as in `rooms.parse`."""

    system_prompt = SYSTEM_PROMPT

    def __init__(self, family: str, sandbox: Sandbox, split: str):
        parse(family)
        self._family, self._sandbox, self._split = family, sandbox, require_split(split)
        self._rooms: Rooms | None = None  # None before the first reset and after an episode's end
        self._room = 0
        self._lost = False

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Returns the instruction and what the first room shows.

        Raises:
          ValueError: the seed belongs to another split.
          SandboxError: the sandbox could not be prepared.
        """
        rooms = generate(self._family, require_seed(operator.index(seed), self._split))
        self._sandbox.reset()
        if not self._emptied():  # it is as new, so this is not the agent's doing
            raise SandboxLost(f"an empty sandbox does not take the file {DOOR_FILE}")
        self._rooms, self._room, self._lost = rooms, 0, False
        return rooms.instruction, {}

    def step(self, action: str) -> Step:
        """See `tool_steps.play`. A command also failed if it named no door of the room.

        Raises:
          SandboxError: the sandbox failed.
        """
        assert self._rooms is not None, "step needs a reset after the end of an episode"
        return play(action, self._run, self.grade)

    def grade(self, answer: str | None = None) -> float:
        """1.0 if every room has been left, and each of those that decide by its right door."""
        assert self._rooms is not None, "grade needs a reset after the end of an episode"
        won = self._room == self._rooms.corridor.depth and not self._lost
        self._rooms = None
        return float(won)

    def save(self) -> None:
        """None, because the room is not in the sandbox. A replay of 48 doors is quick."""

    def load(self, seed: int, saved: Any) -> bool:
        return False

    def close(self) -> None:
        """Leaves the sandbox open, because the caller owns it."""
        self._rooms = None

    def _view(self) -> str:
        texts = self._rooms.texts
        return texts[self._room] if self._room < len(texts) else END

    def _run(self, command: str) -> tuple[str, bool]:
        result = self._sandbox.run(command)
        met = self._walk()
        seen = "\n".join([*_shown(result), *([met] if met else []), self._view()])
        return seen, has_failed(result) or met == UNKNOWN

    def _walk(self) -> str:
        """Goes through the door that the sandbox names; returns what keeps the agent from it."""
        door = self._named()
        if door == "" or self._room == self._rooms.corridor.depth:
            return ""
        if door not in self._rooms.doors:
            return UNKNOWN
        if door not in self._rooms.right[self._room]:
            if self._rooms.corridor.retries:
                return LOCKED
            self._lost = True
        self._room += 1
        return ""

    def _named(self) -> str:
        """What the file holds, which is then empty; UNKNOWN if it cannot be read or emptied."""
        try:
            door = self._sandbox.read(DOOR_FILE, max_bytes=64).decode("ascii", "replace").strip()
        except OSError:
            door = UNKNOWN
        return door if door == "" or self._emptied() else UNKNOWN

    def _emptied(self) -> bool:
        try:
            self._sandbox.write({DOOR_FILE: b""})
        except OSError:
            return False
        return True


def _shown(result: ExecResult) -> list[str]:
    """What the policy gets of a command besides the room; nothing of one that was silent."""
    silent = result.output.strip("\n") == "" and not has_failed(result)
    return [] if silent else [observation(result)]
