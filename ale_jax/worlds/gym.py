"""Between worlds and environments of gymnasium's kind, which answer with tuples: gem's and tunix'
are played as they are, and worlds are offered as such."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.checked import CheckedWorld, Terms, text_of
from ale_jax.worlds.families import Family
from ale_jax.worlds.items import TRAIN, Item

STEP = (
    "observation",
    "reward",
    "terminated",
    "truncated",
    "info",
)  # gem; without `truncated`, tunix


class GymWorld(World):
    """Plays environments with `reset(seed) -> (observation, info)` and `step(reply)`, which returns
    STEP, or the four values of tunix.

    Rewards may be negative. info may be empty; `malformed` and `failed` are counted, and the texts
    `prefix` and `suffix` are read around the observation, where they are there.
    """

    _env: Any = None

    @abc.abstractmethod
    def make(self, item: Item) -> Any:
        """Returns the environment that plays an item; `close` is called if it has one."""

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str:
        """Makes the environment, and returns its first observation."""
        self.close()
        self._env = self.make(item)
        observation, info = _unpacked("reset", self._env.reset(item.seed), ("observation", "info"))
        return _seen(observation, _info(info))

    def step(self, reply: str) -> Step:
        """Plays a reply in the environment."""
        answer = self._env.step(reply)
        short = tuple(name for name in STEP if name != "truncated")
        names = short if isinstance(answer, tuple) and len(answer) == len(short) else STEP
        told = dict(zip(names, _unpacked("step", answer, names), strict=True))
        info, truncated = _info(told["info"]), told.get("truncated", False)
        ends = told["terminated"] or truncated
        return Step(
            observation="" if ends else _seen(told["observation"], info),
            reward=told["reward"],
            done=told["terminated"],
            truncated=truncated,
            malformed=bool(info.get("malformed", False)),
            failed=bool(info.get("failed", False)),
        )

    def close(self) -> None:
        """Ends the environment."""
        if hasattr(self._env, "close"):
            self._env.close()
        self._env = None


def _unpacked(method: str, answer: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(answer, tuple | list) or len(answer) != len(names):
        raise ValueError(f"the answer of {method}, {answer!r:.80}, must be ({', '.join(names)})")
    return tuple(answer)


def _seen(observation: Any, info: Mapping[str, Any]) -> str:
    parts = info.get("prefix", ""), observation, info.get("suffix", "")
    for part in parts:
        if not isinstance(part, str):
            raise ValueError(f"observation {part!r:.80} must be text")
    return "".join(parts)


def _info(info: Any) -> Mapping[str, Any]:
    if not isinstance(info, Mapping):
        raise ValueError(f"info {info!r:.80} must be a dict, which may be empty")
    return info


class AsGem:
    """A family of seeds as an environment with gem's contract."""

    def __init__(self, family: Family, sandbox: JudgedSandbox):
        self._family, self._sandbox = family, sandbox
        self._world: CheckedWorld | None = None

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Begins the training task of a seed. ValueError if the seed is of another split."""
        item = self._family.items.find(self._family.own_name, seed, TRAIN)
        terms = Terms(self._family.name)
        self._world = CheckedWorld(self._family.open(), item, self._sandbox, terms)
        return text_of(self._world.reset()), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Returns observation, reward, terminated, truncated, info."""
        assert self._world is not None, "step needs a reset"
        step = self._world.step(action)
        info = {"malformed": step.malformed, "failed": step.failed}
        reward = step.reward
        if step.ends and self._world.is_judged_apart:
            reward += self._world.verdict()
        return text_of(step.told), reward, step.done, step.truncated, info

    def close(self) -> None:
        """Leaves the sandbox open, because the caller owns it."""
        self._world = None
