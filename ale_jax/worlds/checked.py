"""Holds a world to its interface: what it answers is played, or refused with its value."""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar

import numpy as np

from ale_jax.sandbox.api import JudgedSandbox, SandboxError, SavedState
from ale_jax.worlds.api import Message, NoVerdictError, Step, VerifierError, World
from ale_jax.worlds.items import Item
from ale_jax.worlds.replies import Reply

T = TypeVar("T")

MAX_REWARD = float(np.finfo(np.float32).max)
EXPECTED = (SandboxError, VerifierError, NoVerdictError)  # what a world may raise
ROLES = ("system", "user", "assistant", "tool")


class WorldError(Exception):
    """A world broke its interface: by an error that is not named there, or by an answer that it
    does not allow."""

    @classmethod
    def of(cls, error: Exception) -> WorldError:
        *_, frame = traceback.extract_tb(error.__traceback__)
        return cls(f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})")


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a reply led to, in plain values.

    told: what the policy reads next; () if the episode has ended. reward: of this step alone.
    truncated: the world has cut the episode short; False if it is also done.
    """

    told: tuple[Message, ...]
    reward: float
    done: bool
    truncated: bool
    malformed: bool
    failed: bool

    @property
    def ends(self) -> bool:
        return self.done or self.truncated


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a run says of a world. family: its name in the run, for messages; "" for the world's
    own. solved_at: instead of what the world says; 0: that. weights: of rewards by name; 1.0 of
    others."""

    family: str = ""
    solved_at: float = 0.0
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)


class CheckedWorld:
    """One item of a world, to be played.

    All methods raise what `World` names, and WorldError for anything else that is raised and for
    answers that the interface does not allow: a bug in one world must not end a run in which all
    other worlds work.
    """

    def __init__(
        self,
        world: World,
        item: Item,
        sandbox: JudgedSandbox | None,
        terms: Terms = Terms(),
    ):
        """failed: for each step of the episode, whether it did."""
        self.failed: list[bool] = []
        self._world, self._item, self._sandbox, self._terms = world, item, sandbox, terms
        self._name = f"family {terms.family or item.family!r} ({type(world).__name__})"
        self._by_name: dict[str, float] = {}
        self.solved_at = terms.solved_at or 1.0  # until the world has been reset

    @property
    def rewards(self) -> tuple[tuple[str, float], ...]:
        """What the episode has earned by name, without weights."""
        return tuple(sorted(self._by_name.items()))

    @rewards.setter
    def rewards(self, earned: tuple[tuple[str, float], ...]) -> None:
        self._by_name = dict(earned)

    @property
    def can_grade(self) -> bool:
        """Whether the world judges states, and not only steps."""
        return type(self._world).grade is not World.grade

    @property
    def is_judged_apart(self) -> bool:
        return self._world.is_judged_apart

    def reset(self) -> tuple[Message, ...]:
        """Begins the episode; returns what the policy is told."""
        self.failed, self._by_name = [], {}
        opening = self._guarded(self._world.reset, self._item, self._sandbox)
        self._read_threshold()
        prompt = self._world.system_prompt
        told = [Message("system", prompt)] if prompt else []
        return (*told, *self._messages(opening, "user"))

    def step(self, reply: str) -> StepResult:
        """Plays a reply."""
        step = self._guarded(self._world.step, Reply(reply))
        if not isinstance(step, Step):
            raise self._refused("the answer of step,", step, "must be a Step")
        flags = ("done", "truncated", "malformed", "failed")
        done, truncated, malformed, failed = (self._flag(n, getattr(step, n)) for n in flags)
        ended = done or truncated
        self.failed.append(failed)
        return StepResult(
            told=() if ended else self._messages(step.observation, self._world.role),
            reward=self._reward(step.reward),
            done=done,
            truncated=truncated and not done,
            malformed=malformed,
            failed=failed,
        )

    def grade(self, *answer: str) -> float:
        """Returns what ending in the current state earns. answer: of a program of its own."""
        return self._reward(self._guarded(self._world.grade, *answer))

    def verdict(self) -> float:
        """Returns what an episode that has ended earns, without its sandbox."""
        return self._reward(self._guarded(self._world.verdict))

    def metrics(self) -> tuple[tuple[str, float], ...]:
        """Returns what the world tells about the episode that has ended, by name."""
        given = self._guarded(self._world.metrics)
        if not isinstance(given, Mapping):
            raise self._refused("metrics", given, "must be numbers by name")
        return tuple(sorted(self._named("metric", given).items()))

    def save(self) -> SavedState | None:
        """Returns the current state; None if it cannot be restored."""
        return self._guarded(self._world.save)

    def load(self, saved: SavedState) -> bool:
        """Restores what `save` returned; False if it could not be restored completely."""
        whole = bool(self._guarded(self._world.load, self._item, self._sandbox, saved))
        self._read_threshold()
        return whole

    def _read_threshold(self) -> None:
        given = self._terms.solved_at or self._world.solved_at
        if not self._number("solved_at", given) > 0.0:  # experts are imitated by their reward
            raise self._refused("solved_at", given, "must be above 0")
        self.solved_at = float(given)

    def _guarded(self, call: Callable[..., T], *args: object) -> T:
        try:
            return call(*args)
        except EXPECTED:
            raise
        except Exception as error:
            raise WorldError.of(error) from error

    def _messages(self, given: Any, role: Any) -> tuple[Message, ...]:
        if isinstance(given, str):
            return (Message(role, given),)
        if not isinstance(given, Sequence) or not given or not all(map(_is_message, given)):
            raise self._refused("observation", given, "must be text, or some messages")
        return tuple(given)

    def _flag(self, name: str, given: Any) -> bool:
        if not isinstance(given, bool | np.bool_):
            raise self._refused(name, given, "must be True or False")
        return bool(given)

    def _reward(self, given: Any) -> float:
        """Returns a reward as one number, and adds it to those by name if it has names."""
        if not isinstance(given, Mapping):
            return self._number("reward", given)
        numbers = self._named("reward", given)
        for name, number in numbers.items():
            self._by_name[name] = self._by_name.get(name, 0.0) + number
        weighed = (self._terms.weights.get(name, 1.0) * n for name, n in numbers.items())
        return self._number("reward", math.fsum(weighed))

    def _named(self, what: str, given: Mapping[Any, Any]) -> dict[str, float]:
        for name in given:
            if not isinstance(name, str) or not name:
                raise self._refused(f"the name of a {what},", name, "must be text")
        return {name: self._number(f"{what} {name}", value) for name, value in given.items()}

    def _number(self, name: str, given: Any) -> float:
        """Returns a number as the records hold it, whatever it is: 1, True, np.float32(1). It must
        be finite as float32, in which it is learned from."""
        try:
            number = float(given) if isinstance(given, SupportsFloat) else math.nan
        except (OverflowError, TypeError, ValueError):  # 10**400 overflows
            number = math.nan
        if not abs(number) <= MAX_REWARD:
            raise self._refused(name, given, "must be a finite number")
        return number

    def _refused(self, what: str, value: Any, remedy: str) -> WorldError:
        return WorldError(f"{self._name}: {what} {value!r:.80} {remedy}")


def _is_message(given: Any) -> bool:
    return isinstance(given, Message) and given.role in ROLES and isinstance(given.content, str)


def text_of(told: Sequence[Message]) -> str:
    """Returns the texts of messages, without the system's, which are the
    same in each episode."""
    return "\n".join(each.content for each in told if each.role != "system")
