"""Countdown: one turn, text in, text out. It needs no sandbox."""

from __future__ import annotations

from ale_jax.envs.countdown.expression import ExpressionError, evaluate
from ale_jax.envs.countdown.puzzle import FAMILIES, Puzzle, generate
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.items import Item, Seeds


class Countdown(World):
    """The last line of the reply is judged; the lines before it are ignored."""

    families = dict.fromkeys(FAMILIES, Seeds())
    system_prompt = "Reach the target with + - * / and each number once; the last line counts."
    role = "tool"

    def oracle(self, item: Item) -> tuple[str]:
        """Returns the steps of the solution, and the expression."""
        return (generate(item.family, item.seed).solution,)

    def reset(self, item: Item, sandbox: object) -> str:
        """Returns the puzzle."""
        self._puzzle = generate(item.family, item.seed)
        return self._puzzle.instruction

    def step(self, reply: str) -> Step:
        """Judges the reply, which failed if its last line is no expression."""
        try:
            return Step(reward=float(_solves(reply, self._puzzle)), done=True)
        except ExpressionError:
            return Step(done=True, malformed=True, failed=True)

    def grade(self, answer: str | None = None) -> float:
        """Returns the reward of the answer, 0.0 without one."""
        try:
            return float(_solves(answer or "", self._puzzle))
        except ExpressionError:
            return 0.0


def _solves(reply: str, puzzle: Puzzle) -> bool:
    """ExpressionError if the last line is no expression."""
    value, numbers = evaluate(reply.rstrip().rpartition("\n")[2])
    return value == puzzle.target and sorted(numbers) == sorted(puzzle.numbers)
