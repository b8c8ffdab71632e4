"""The multi-turn tasks of the Berkeley Function Calling Leaderboard: a user asks for several things
in turn, which the policy does by calling functions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.worlds.api import Message, NoVerdictError, Step, World
from ale_jax.worlds.bridges.process import Lent, PlayerError, Shared, names_of
from ale_jax.worlds.finite import Finite, Row
from ale_jax.worlds.items import EVAL, TRAIN, Item, Items, Name
from ale_jax.worlds.replies import Call, Reply, write_reply
from ale_jax.worlds.tools import Tool

LIBRARY = "bfcl"
FAILED = "Error during execution"  # how the library begins the result of a call that has failed
DONE = "Done."


class Bfcl(World):
    """The library's categories are the families. Odd tasks are trained on, and even ones evaluated:
    those of one number are variants of each other in all categories.

    A reply without calls ends the user's turn. After the last one, the library judges the states
    and the results of all turns: the reward is 1 or 0. More than 20 replies with calls in a turn
    end the episode.

    python: an interpreter that has the library; "" for ours.
    """

    role = "tool"

    def __init__(self, python: str = ""):
        self._python, self._library = python, shared(python)
        self.families = _Categories(python)

    def tools(self, item: Item) -> Sequence[Tool]:
        """Returns the functions of the item, without those that come later in the conversation."""
        return tuple(self._library.ask("tools", item.name))

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str:
        """Returns the user's first request."""
        self._episode = Lent(LIBRARY, self._python)
        self._calls = self._failed = 0
        told = self._episode.ask("begin", item.name)
        assert isinstance(told, str)
        return told

    def step(self, reply: Reply) -> Step:
        """Executes the calls of a reply; without any, the user goes on, or the task is judged."""
        if reply.calls:
            return self._called(reply)
        malformed = reply.malformed > 0
        told = self._episode.ask("turn")
        if told is not None:
            return Step([Message("user", told)], malformed=malformed, failed=malformed)
        solved = self._of_reply("score")
        return Step(reward=float(solved), done=True, malformed=malformed, failed=malformed)

    def metrics(self) -> Mapping[str, float]:
        """Returns how many calls there were, and how many of them failed."""
        return {"calls": self._calls, "failed_calls": self._failed}

    def oracle(self, item: Item) -> Sequence[str] | None:
        """Returns the calls that the library expects in each turn, in one reply."""
        return tuple(_replies(self._library.ask("oracle", item.name)))

    def _called(self, reply: Reply) -> Step:
        calls = [[call.name, dict(call.arguments)] for call in reply.calls]
        results, is_cut = self._of_reply("step", calls)
        failed = sum(result.startswith(FAILED) for result in results)
        self._calls, self._failed = self._calls + len(results), self._failed + failed
        told = [Message("tool", result) for result in results]
        reward = float(self._of_reply("score")) if is_cut else 0.0
        return Step(told, reward, truncated=is_cut, failed=failed > 0)

    def _of_reply(self, method: str, *arguments: object) -> Any:
        try:
            return self._episode.ask(method, *arguments)
        except PlayerError as error:
            raise NoVerdictError(f"{LIBRARY}: {error}") from error


def _replies(turns: Sequence[Sequence[tuple[str, Mapping[str, object]]]]) -> Iterator[str]:
    for turn in turns:
        if turn:
            yield write_reply("", [Call(*each) for each in turn])
        yield DONE


@dataclasses.dataclass(frozen=True)
class _Tasks(Finite):
    """The items of the category `path`."""

    python: str = ""

    def read(self) -> Mapping[str, Mapping[Name, Row]]:
        split: dict[str, dict[Name, Row]] = {TRAIN: {}, EVAL: {}}
        for name, classes, turns in shared(self.python).ask("items", self.path):
            is_odd = int(name.rpartition("_")[2]) % 2 == 1
            row = {"asked": "\n".join(turns), "classes": classes, "user_turns": len(turns)}
            split[TRAIN if is_odd else EVAL][name] = row
        return split

    def digest(self) -> str:
        """Returns a digest of the library's tasks."""
        return str(shared(self.python).ask("digest", self.path))


class _Categories(Mapping[str, Items]):
    def __init__(self, python: str):
        self._python = python

    def __getitem__(self, name: str) -> Items:
        if name not in names_of(LIBRARY, self._python):
            raise KeyError(name)
        return _Tasks(name, python=self._python)

    def __iter__(self) -> Iterator[str]:
        return iter(names_of(LIBRARY, self._python))

    def __len__(self) -> int:
        return len(names_of(LIBRARY, self._python))


@functools.lru_cache(maxsize=16)
def shared(python: str) -> Shared:
    """Returns a process that tells of items, and plays none."""
    return Shared(LIBRARY, python)
