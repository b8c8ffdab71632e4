"""What a task is made of: the files to start from, the goal, and an oracle that reaches it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ale_jax.agent.tools import ToolCall
from envs.shell.words import WORDS


@dataclasses.dataclass(frozen=True)
class Probe:
    """Runs the agent's own work on data that it has never seen.

    files: written over the agent's, just before `command` runs in a session of its own.
    output: what the command must print, without the trailing newline; it must also exit with 0.
    """

    files: Mapping[str, bytes]
    command: str
    output: str


@dataclasses.dataclass(frozen=True)
class Goal:
    """What is right at the end. Stays in the playing process: the sandbox never sees it.

    files: path -> exact content; None where nothing may be left. Files not named here are free.
    answer: what `finish` must say; None where only the files count.
    """

    files: Mapping[str, bytes | None]
    answer: str | None = None
    probe: Probe | None = None


@dataclasses.dataclass(frozen=True)
class World:
    """A task as generated. Paths are relative to the working directory.

    oracle: calls that reach the goal, each inferable from the instruction and what was read before.
    """

    instruction: str
    files: Mapping[str, bytes]
    goal: Goal
    oracle: tuple[ToolCall, ...]


Generator = Callable[[np.random.Generator], World]


def lines(*texts: str) -> bytes:
    """The content of a text file."""
    return "".join(f"{text}\n" for text in texts).encode()


class Names:
    """Draws words and numbers; none comes twice in a world, so that every copy has one source."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._words = iter(rng.permutation(len(WORDS)).tolist())
        # Three digits each: none is a part of another one.
        self._numbers = iter(rng.permutation(np.arange(100, 1000)).tolist())

    def word(self) -> str:
        return WORDS[next(self._words)]

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def number(self) -> str:
        return str(next(self._numbers))

    def code(self) -> str:
        """Six digits: whoever guesses is hardly ever right."""
        return self.number() + self.number()

    def value(self) -> str:
        """A word or a number."""
        return self.word() if self._rng.random() < 0.5 else self.number()

    def path(self, extension: str, directory: str = "") -> str:
        """A new file in `directory`, by default where the session starts."""
        name = f"{self.word()}.{extension}"
        return f"{directory}/{name}" if directory else name


def shuffled(rng: np.random.Generator, items: Sequence[str]) -> list[str]:
    return [items[i] for i in rng.permutation(len(items))]


def pick(rng: np.random.Generator, items: Sequence[str]) -> str:
    return items[rng.integers(len(items))]
