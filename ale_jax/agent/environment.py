"""What environments answer, held to GEM's contract: it is played, or refused with its value.

An environment needs `reset` and `step` only (`agent.api.Environment`). What else it may have:

    system_prompt   what the policy is told before the instruction; "" by default
    grade(answer)   the reward of ending in the current state, where the agent did not end the
                    episode; answer: of an agent's own program, else left out. Without this method,
                    an episode that is cut short earns no more than its steps did
    solved_at       the reward of an episode from which its task is solved, 1.0 by default; it may
                    depend on the task
    save(), load()  the current state, and its return (`StateMemory`). Without them, every prefix
                    is replayed
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar

import numpy as np

from ale_jax.agent.api import Environment, NoVerdictError, VerifierError
from ale_jax.sandbox.api import SandboxError, SavedState

T = TypeVar("T")

MAX_REWARD = float(np.finfo(np.float32).max)
EXPECTED = (SandboxError, VerifierError, NoVerdictError)  # what an environment may raise


class EnvError(Exception):
    """The environment broke its contract: by an error that is not named there, or by an answer that
    it does not allow."""

    @classmethod
    def of(cls, error: Exception) -> EnvError:
        *_, frame = traceback.extract_tb(error.__traceback__)
        return cls(f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})")


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What an action led to.

    seen: the observation, with the `prefix` and `suffix` of GEM's info; "" if the episode has
    ended, as nobody reads it. reward: of this step alone. truncated: the environment has cut the
    episode short; False if it has also terminated. malformed: the action held no valid call.
    """

    seen: str
    reward: float
    terminated: bool
    truncated: bool
    malformed: bool

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated


class CheckedEnvironment:
    """An environment whose answers are checked and brought to plain Python values.

    All methods raise what `Environment` names, and EnvError for anything else that is raised and
    for answers that GEM's contract does not allow: a bug in one world must not end a run in which
    all other worlds work.
    """

    def __init__(self, env: Environment, family: str):
        """family: of the tasks that it plays, for messages."""
        self._env = env
        self._name = f"family {family!r} ({type(env).__name__})"
        self.system_prompt: str = getattr(env, "system_prompt", "")
        self.solved_at = 1.0  # until a task is known
        self._grade, self._save, self._load = (
            getattr(env, name, None) for name in ("grade", "save", "load")
        )

    @property
    def can_grade(self) -> bool:
        return self._grade is not None

    def reset(self, seed: int) -> str:
        """Builds the world of `seed`; returns the instruction."""
        observation, info = self._unpacked("reset", self._guarded(self._env.reset, seed), 2)
        self.solved_at = self._threshold()
        return self._seen(observation, self._info(info))

    def step(self, action: str) -> StepResult:
        """Plays one action."""
        answer = self._unpacked("step", self._guarded(self._env.step, action), 5)
        observation, given, *ends, info = answer
        terminated, truncated = map(self._flag, ("terminated", "truncated"), ends)
        info, reward = self._info(info), self._reward(given)
        ended = terminated or truncated
        return StepResult(
            seen="" if ended else self._seen(observation, info),
            reward=reward,
            terminated=terminated,
            truncated=truncated and not terminated,
            malformed=bool(info.get("malformed", False)),
        )

    def grade(self, *answer: str) -> float:
        """Returns the reward of ending in the current state; 0 if the environment does not say."""
        return 0.0 if self._grade is None else self._reward(self._guarded(self._grade, *answer))

    def save(self) -> SavedState | None:
        """Returns the current state; None if it cannot be restored."""
        return None if self._save is None else self._guarded(self._save)

    def load(self, seed: int, saved: SavedState) -> bool:
        """Restores what `save` returned; False if it could not be restored completely."""
        assert self._load is not None, "only what it has saved is loaded"
        is_whole = bool(self._guarded(self._load, seed, saved))
        self.solved_at = self._threshold()
        return is_whole

    def _threshold(self) -> float:
        given = getattr(self._env, "solved_at", 1.0)
        if not self._reward(given) > 0.0:  # experts are imitated by the weight of their reward
            raise self._refused("solved_at", given, "must be above 0")
        return float(given)

    def _guarded(self, call: Callable[..., T], *args: object) -> T:
        try:
            return call(*args)
        except EXPECTED:
            raise
        except Exception as error:
            raise EnvError.of(error) from error

    def _unpacked(self, method: str, answer: Any, length: int) -> tuple[Any, ...]:
        if not isinstance(answer, tuple | list) or len(answer) != length:
            names = ("observation", "reward", "terminated", "truncated", "info")
            wanted = ", ".join(names if length == len(names) else ("observation", "info"))
            raise self._refused(f"the answer of {method},", answer, f"must be ({wanted})")
        return tuple(answer)

    def _seen(self, observation: Any, info: Mapping[str, Any]) -> str:
        parts = info.get("prefix", ""), observation, info.get("suffix", "")
        for part in parts:
            if not isinstance(part, str):
                raise self._refused("observation", part, "must be text")
        return "".join(parts)

    def _info(self, info: Any) -> Mapping[str, Any]:
        if not isinstance(info, Mapping):
            raise self._refused("info", info, "must be a dict, which may be empty")
        return info

    def _flag(self, name: str, given: Any) -> bool:
        if not isinstance(given, bool | np.bool_):
            raise self._refused(name, given, "must be True or False")
        return bool(given)

    def _reward(self, given: Any) -> float:
        """Returns a reward as the records hold it, whatever number it is: 1, True, np.float32(1).
        It must be finite as float32, in which it is learned from."""
        try:
            reward = float(given) if isinstance(given, SupportsFloat) else math.nan
        except (OverflowError, TypeError, ValueError):  # 10**400 overflows
            reward = math.nan
        if not abs(reward) <= MAX_REWARD:
            raise self._refused("reward", given, "must be a finite number")
        return reward

    def _refused(self, what: str, value: Any, remedy: str) -> EnvError:
        return EnvError(f"{self._name}: {what} {value!r:.80} {remedy}")
