"""Countdown puzzles, each of which is generated from a solution, and their families."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping

import numpy as np

from ale_jax.worlds.items import split_of

HIGHEST = 99  # of the target and of every intermediate value
EVAL_SHARE = 8  # one in this many puzzles belongs to the evaluation split
MAX_DRAWS = 10_000  # about thirty are needed at most; the bound prevents an endless loop

WORDINGS = (
    "Make {target} of {numbers}.",
    "Reach {target} with {numbers}.",
)


@dataclasses.dataclass(frozen=True)
class Puzzle:
    """numbers: each must be used exactly once. solution: the oracle's reply, with one step per line
    and then the expression."""

    numbers: tuple[int, ...]
    target: int
    instruction: str
    solution: str


@dataclasses.dataclass(frozen=True)
class Difficulty:
    """A puzzle has `count` numbers from 1 to `highest`."""

    count: int
    highest: int


FAMILIES: Mapping[str, Difficulty] = {
    "countdown3": Difficulty(count=3, highest=9),
    "countdown4": Difficulty(count=4, highest=9),
}


@dataclasses.dataclass(frozen=True)
class _Term:
    value: int
    text: str

    @property
    def operand(self) -> str:
        return self.text if self.text.isdigit() else f"({self.text})"


def generate(family: str, seed: int) -> Puzzle:
    """The puzzle of `family` and `seed`, the same on every machine.

    There are few puzzles, so that different seeds can give the same one. To keep the splits
    disjoint, a puzzle's split is decided by its numbers (in any order) and its target.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}, expected one of: {', '.join(FAMILIES)}")
    split = split_of(seed)
    rng = np.random.default_rng([zlib.crc32(family.encode()), seed])
    for _ in range(MAX_DRAWS):
        puzzle = _draw(rng, FAMILIES[family])
        if puzzle is not None and split == owner(puzzle):
            return puzzle
    raise AssertionError(f"no puzzle of {family} in {MAX_DRAWS} draws for seed {seed}")


def owner(puzzle: Puzzle) -> str:
    """The split that a puzzle belongs to, independently of the seed that drew it."""
    content = f"{sorted(puzzle.numbers)} {puzzle.target}"
    return "train" if zlib.crc32(content.encode()) % EVAL_SHARE else "eval"


def _draw(rng: np.random.Generator, difficulty: Difficulty) -> Puzzle | None:
    """None if the numbers drawn cannot be combined within 1..HIGHEST."""
    numbers = tuple(rng.integers(1, difficulty.highest + 1, difficulty.count).tolist())
    terms, steps = [_Term(n, str(n)) for n in numbers], []
    while len(terms) > 1:
        i, j = rng.permutation(len(terms))[:2].tolist()
        left, right = terms[i], terms[j]
        results = _results(left.value, right.value)
        if not results:
            return None
        sign = list(results)[rng.integers(len(results))]
        joined = _Term(results[sign], f"{left.operand}{sign}{right.operand}")
        steps.append(f"{left.value}{sign}{right.value}={joined.value}")
        terms = [t for k, t in enumerate(terms) if k not in (i, j)] + [joined]
    (whole,) = terms
    wording = WORDINGS[rng.integers(len(WORDINGS))]
    return Puzzle(
        numbers=numbers,
        target=whole.value,
        instruction=wording.format(target=whole.value, numbers=" ".join(map(str, numbers))),
        solution="\n".join([*steps, whole.text]),
    )


def _results(left: int, right: int) -> dict[str, int]:
    """The results of the operations on two numbers that are integers in 1..HIGHEST. n * 1 and n / 1
    are excluded, because they would be a trivial way to use up a 1."""
    results = {"+": left + right, "-": left - right}
    if min(left, right) > 1:
        results["*"] = left * right
        if left % right == 0:
            results["/"] = left // right
    return {sign: value for sign, value in results.items() if 1 <= value <= HIGHEST}
