"""Corridors: the agent acts in a sandbox, and the doors are outside of it.

After each command the world reads the file `door`, empties it, and lets the agent through at most
one door. Which rooms follow and which doors are right is never in the sandbox, so that there is
nothing to be read ahead, tried out, or written there that would win.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ale_jax.agent.tool_steps import has_failed, observation, play
from ale_jax.agent.tools import OFFERED, SYSTEM_PROMPT, finish, render_tool_call
from ale_jax.envs.corridor import rooms
from ale_jax.envs.corridor.rooms import DOOR_FILE, Rooms, generate
from ale_jax.sandbox.api import ExecResult, Sandbox, SandboxLost
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.items import Item, Seeds

END = "the end"
LOCKED = "locked"
UNKNOWN = "no such door"


class NamedBySettings(Mapping[str, Seeds]):
    """The families of corridors, of which only examples are listed."""

    def __getitem__(self, family: str) -> Seeds:
        """ValueError as in `rooms.parse`."""
        rooms.parse(family)
        return Seeds()

    def __iter__(self) -> Iterator[str]:
        return iter(rooms.FAMILIES)

    def __len__(self) -> int:
        return len(rooms.FAMILIES)


class Corridors(World):
    """The reward is 1 if every room has been left, and each of those that decide by its right
    door."""

    families = NamedBySettings()
    system_prompt, loop_tools = SYSTEM_PROMPT, OFFERED
    role = "tool"
    nothing = render_tool_call(finish())

    _sandbox: Sandbox

    def __init__(self) -> None:
        self._rooms: Rooms | None = None  # None before the first reset and after an episode's end
        self._room = 0
        self._lost = False

    def sandbox(self, item: Item, spec: SandboxSpec) -> SandboxSpec:
        """Returns the run's: all tasks need one."""
        return spec

    def oracle(self, item: Item) -> tuple[str, ...]:
        """Returns the commands that name the right doors."""
        return tuple(map(render_tool_call, rooms.oracle(item.family, item.seed)))

    def noisy_oracle(self, item: Item) -> tuple[str, ...]:
        """Returns the same with errors that are corrected."""
        return tuple(map(render_tool_call, rooms.noisy_oracle(item.family, item.seed)))

    def reset(self, item: Item, sandbox: Sandbox | None) -> str:
        """Returns the instruction and what the first room shows."""
        assert sandbox is not None, "a corridor is played in a sandbox"
        sandbox.reset()
        self._sandbox = sandbox
        if not self._emptied():  # it is as new, so this is not the agent's doing
            raise SandboxLost(f"an empty sandbox does not take the file {DOOR_FILE}")
        self._rooms, self._room, self._lost = generate(item.family, item.seed), 0, False
        return self._rooms.instruction

    def step(self, reply: str) -> Step:
        """See `tool_steps.play`. A command also failed if it named no door of the room."""
        assert self._rooms is not None, "step needs a reset after the end of an episode"
        return play(reply, self._run, self.grade)

    def grade(self, answer: str | None = None) -> float:
        """Returns 1.0 if the corridor has been won."""
        assert self._rooms is not None, "grade needs a reset after the end of an episode"
        won = self._room == self._rooms.corridor.depth and not self._lost
        self._rooms = None
        return float(won)

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
