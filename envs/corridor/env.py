"""A corridor as a GEM environment: the agent acts in a sandbox, and the doors are outside of it.

After each command the environment reads the file `door`, empties it, and lets the agent through at
most one door. Which rooms follow and which doors are right is never in the sandbox, so that there
is nothing to be read ahead, tried out, or written there that would win.
"""

from __future__ import annotations

import operator
from typing import Any

from ale_jax.agent.tools import SYSTEM_PROMPT, ToolCallError, parse_tool_call
from ale_jax.sandbox.api import ExecResult, Sandbox, SandboxLost
from envs.corridor.rooms import DOOR_FILE, Rooms, generate, parse
from envs.shell.env import observation
from envs.splits import require_seed, require_split

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

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `ShellEnv.step`. A command also failed if it named no door of the room.

        Raises:
          SandboxError: the sandbox failed.
        """
        assert self._rooms is not None, "step needs a reset after the end of an episode"
        try:
            call = parse_tool_call(action)
        except ToolCallError as error:
            return f"error: {error}", 0.0, False, False, {"malformed": True, "failed": True}
        if call.name == "finish":
            return "", self.grade(), True, False, {"malformed": False, "failed": False}
        result = self._sandbox.run(call.arguments["command"])
        met = self._walk()
        failed = result.timed_out or result.exit_code != 0 or met == UNKNOWN
        seen = "\n".join([*_shown(result), *([met] if met else []), self._view()])
        return seen, 0.0, False, False, {"malformed": False, "failed": failed}

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
        except FileNotFoundError:
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
    silent = result.output.strip("\n") == "" and result.exit_code == 0 and not result.timed_out
    return [] if silent else [observation(result)]
