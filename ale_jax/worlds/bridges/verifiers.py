"""Tasksets of verifiers: single turns and several, with the library's users, tools and rewards."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.worlds.api import Message, NoVerdictError, Step, World
from ale_jax.worlds.bridges.process import INSTALLED_BY, Lent, PlayerError, Shared
from ale_jax.worlds.finite import Finite, Row, divided
from ale_jax.worlds.items import Item, Name
from ale_jax.worlds.replies import Reply
from ale_jax.worlds.tools import Tool

LIBRARY = "verifiers"


class Verifiers(World):
    """Its family has the taskset's name. The library plays, with the environment that the taskset
    comes with and its own chat loop; the policy is the model that it calls.

    taskset: its id, which is a module. folder: where that is, if it is not installed. python: an
    interpreter that has the library; "" for ours. eval_share: of the tasks, those that are only
    evaluated; their content chooses them.
    """

    role = "tool"

    def __init__(self, taskset: str, folder: str = "", python: str = "", eval_share: float = 0.1):
        self._python = python
        self._metrics: Mapping[str, float] = {}
        self.families = {taskset: _Listed(taskset, folder, python, eval_share)}

    def tools(self, item: Item) -> Sequence[Tool]:
        """Returns what the taskset's servers offer."""
        return tuple(shared(self._python).ask("tools", *item["place"]))

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> Sequence[Message]:
        """Returns what the library tells the model first."""
        self._episode, self._metrics = Lent(LIBRARY, self._python), {}
        told = self._episode.ask("begin", *item["place"], item["position"])
        if "messages" not in told:
            raise ValueError(f"{item.family}: the library asks for nothing: {told['error']}")
        return _messages(told)

    def step(self, reply: Reply) -> Step:
        """Gives the library a reply, and lets it play on until it needs another one."""
        calls = [[call.name, dict(call.arguments)] for call in reply.calls]
        try:
            told = self._episode.ask("answer", reply.content, calls)
        except PlayerError as error:
            raise NoVerdictError(f"{LIBRARY}: {error}") from error
        malformed = reply.malformed > 0 and not calls
        if "messages" in told:
            return Step(_messages(told), malformed=malformed, failed=malformed)
        if told["error"]:
            raise NoVerdictError(f"{LIBRARY}: {told['error']}")
        self._metrics = told["metrics"]
        return Step(reward=told["rewards"], done=True, malformed=malformed, failed=malformed)

    def metrics(self) -> Mapping[str, float]:
        """Returns the taskset's."""
        return self._metrics


def _messages(told: Mapping[str, Any]) -> list[Message]:
    return [Message(role, content) for role, content in told["messages"]]


@dataclasses.dataclass(frozen=True)
class _Listed(Finite):
    """The tasks of the taskset `path`, by their positions. within: the folder of its module."""

    within: str = ""
    python: str = ""
    eval_share: float = 0.1

    def read(self) -> Mapping[str, Mapping[Name, Row]]:
        listed = self._listed()
        rows: dict[Name, Row] = {
            number: {"position": int(number), "prompt": prompt, "place": self._place}
            for number, prompt, _ in listed
        }
        return divided(rows, {number: key.encode() for number, _, key in listed}, self.eval_share)

    def digest(self) -> str:
        """Returns a digest of the tasks' data."""
        return hashlib.sha256("".join(key for *_, key in self._listed()).encode()).hexdigest()

    @property
    def _place(self) -> tuple[str, str]:
        return str(self.folder / self.within), self.path

    def _listed(self) -> list[tuple[str, str, str]]:
        try:
            return [tuple(each) for each in shared(self.python).ask("items", *self._place)]
        except PlayerError as error:
            raise ValueError(
                f"taskset {self.path!r:.80} cannot be played ({error}); without the library, "
                f"type: {INSTALLED_BY[LIBRARY]}"
            ) from error


@functools.lru_cache(maxsize=16)
def shared(python: str) -> Shared:
    """Returns a process that tells of tasks, and plays none."""
    return Shared(LIBRARY, python)
