"""Countdown as a GEM environment: one turn, text in, text out. It needs no sandbox."""

from __future__ import annotations

import operator
from typing import Any

from ale_jax.envs.countdown.expression import ExpressionError, evaluate
from ale_jax.envs.countdown.puzzle import Puzzle, generate
from ale_jax.envs.splits import require_seed, require_split

SYSTEM_PROMPT = "Reach the target with + - * / and each number once; the last line counts."


class CountdownEnv:
    """The puzzles of one family. It can be reset any number of times."""

    system_prompt = SYSTEM_PROMPT

    def __init__(self, family: str, split: str):
        self._family, self._split = family, require_split(split)
        self._puzzle: Puzzle | None = None  # None before the first reset and after an episode's end

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """The puzzle of `seed`. ValueError if the seed belongs to another split."""
        self._puzzle = generate(self._family, require_seed(operator.index(seed), self._split))
        return self._puzzle.instruction, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judges the last line of `action`; the lines before it are ignored.

        Always ends the episode. info: `malformed` and `failed` are True if the line is not an
        expression.
        """
        assert self._puzzle is not None, "step needs a reset after the end of an episode"
        puzzle, self._puzzle = self._puzzle, None
        try:
            value, numbers = evaluate(action.rstrip().rpartition("\n")[2])
        except ExpressionError:
            return "", 0.0, True, False, {"malformed": True, "failed": True}
        solved = value == puzzle.target and sorted(numbers) == sorted(puzzle.numbers)
        return "", float(solved), True, False, {"malformed": False, "failed": False}

    def grade(self, answer: str | None = None) -> float:
        """The reward of the answer, 0.0 without one."""
        _, reward, _, _, _ = self.step(answer or "")
        return reward

    def save(self) -> None:
        """None: with a single turn there is no state to save."""

    def load(self, seed: int, saved: Any) -> bool:
        return False

    def close(self) -> None:
        """Does nothing."""
