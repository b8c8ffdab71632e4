"""The parts of a task: the initial files, the goal, and an oracle that reaches it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ale_jax.agent.tools import ToolCall
from ale_jax.envs.shell.words import WORDS


@dataclasses.dataclass(frozen=True)
class Probe:
    """Runs the agent's work on data that the agent has never seen.

    files: overwrite the agent's files just before `command` runs in a separate session.
    output: what the command must print, without the trailing newline; it must also exit with 0.
    """

    files: Mapping[str, bytes]
    command: str
    output: str


@dataclasses.dataclass(frozen=True)
class Goal:
    """The expected outcome. It stays in the process that plays the episode; the sandbox never sees
    it.

    files: path -> exact content, or None if the path must not exist. Other files do not matter.
    answer: the expected answer of `finish`; None if only the files count.
    """

    files: Mapping[str, bytes | None]
    answer: str | None = None
    probe: Probe | None = None


@dataclasses.dataclass(frozen=True)
class ShellTask:
    """A generated task. Paths are relative to the working directory.

    oracle: calls that reach the goal. Each can be inferred from the instruction and from what was
    read before it.
    """

    instruction: str
    files: Mapping[str, bytes]
    goal: Goal
    oracle: tuple[ToolCall, ...]


Generator = Callable[[np.random.Generator], ShellTask]


def lines(*texts: str) -> bytes:
    """The content of a text file."""
    return "".join(f"{text}\n" for text in texts).encode()


class Names:
    """Draws words and numbers. None is drawn twice in a task, so that every copy has one source."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._words = iter(rng.permutation(len(WORDS)).tolist())
        # Three digits each, so that none is part of another one.
        self._numbers = iter(rng.permutation(np.arange(100, 1000)).tolist())

    def word(self) -> str:
        return WORDS[next(self._words)]

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def number(self) -> str:
        return str(next(self._numbers))

    def code(self) -> str:
        """Six digits, so that a guess is hardly ever right."""
        return self.number() + self.number()

    def value(self) -> str:
        """A word or a number."""
        return self.word() if self._rng.random() < 0.5 else self.number()

    def path(self, extension: str, directory: str = "") -> str:
        """A new file in `directory`, which defaults to the session's initial directory."""
        name = f"{self.word()}.{extension}"
        return f"{directory}/{name}" if directory else name


def shuffled(rng: np.random.Generator, items: Sequence[str]) -> list[str]:
    return [items[i] for i in rng.permutation(len(items))]


def pick(rng: np.random.Generator, items: Sequence[str]) -> str:
    return items[rng.integers(len(items))]
