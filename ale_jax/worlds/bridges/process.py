"""Processes in which libraries of tasks answer (player.py), and the games that are played there."""

from __future__ import annotations

import functools
import json
import os
import select
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ale_jax.sandbox.api import SandboxError
from ale_jax.worlds.bridges import confined
from ale_jax.worlds.items import Items, Seeds

PLAYER = Path(__file__).with_name("player.py")
START_S, ANSWER_S = 60.0, 30.0
SLOW_S = {"verifiers": 120.0}  # of libraries that start programs for each episode
MAX_ANSWER = 1 << 20
INSTALLED_BY = {
    "bfcl": "make bfcl",
    "gem": "make gem",
    "reasoning_gym": "make gem",
    "textarena": "make textarena",
    "verifiers": "make verifiers",
}
# A library needs no more of the user's environment, in which there may be secrets.
KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "NLTK_DATA", "PATH", "TMPDIR")
# The order of a set of words must not depend on the process that made an item.
FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class PlayerError(SandboxError):
    """The process ended unexpectedly, or its library reported an error."""


class Player:
    """A process that answers for a library.

    python: an interpreter that has it, with its environment; "" for ours.
    """

    def __init__(self, library: str, python: str):
        """ValueError if there is no such interpreter."""
        self.library, self.python, self.is_alive = library, python, True
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        # Neither the folder of player.py nor the user's packages are imported from.
        line = [os.path.abspath(python or sys.executable), "-P", "-s", str(PLAYER), library]
        try:
            self._process = confined.started(line, {**kept, **FIXED})
        except ValueError as error:
            raise ValueError(f"{library}: {error}; type: {INSTALLED_BY[library]}") from error
        self._seconds = START_S  # of the next answer

    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns the library's answer. PlayerError if there is none; where it is not the library
        that reports an error, the process has then ended."""
        try:
            request = {"ask": method, "with": arguments}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError) as error:  # a closed pipe, or a closed file
            self.close()
            raise PlayerError(f"{self.library} has ended") from error
        answer = json.loads(self._line(self._seconds))
        self._seconds = SLOW_S.get(self.library, ANSWER_S)
        if "answer" not in answer:
            raise PlayerError(f"{answer.get('error', answer)}"[:500])
        return answer["answer"]

    def close(self) -> None:
        """Ends the process; may be called again."""
        self.is_alive = False
        confined.end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        line, deadline = b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                self.close()
                raise PlayerError(f"{self.library} did not answer within {seconds:g} s")
            piece = self._process.stdout.read(1 << 16)
            line += piece
            if not piece or len(line) > MAX_ANSWER:
                self.close()
                raise PlayerError(f"{self.library} ended unexpectedly")
        return line


class Players:
    """Processes that are kept from one episode for the next: to start one takes seconds."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[Player]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, library: str, python: str) -> Player:
        """Returns a process that nobody else uses."""
        with self._lock:
            idle = self._idle[library, python]
            return idle.pop() if idle else Player(library, python)

    def give_back(self, player: Player) -> None:
        """Keeps a process for the next, if it is alive."""
        if player.is_alive:
            with self._lock:
                self._idle[player.library, player.python].append(player)


PLAYERS = Players()


class Shared:
    """A process for all worlds of this one, where an answer depends on its request alone."""

    def __init__(self, library: str, python: str):
        self._library, self._python, self._lock = library, python, threading.Lock()
        self._player: Player | None = None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns the library's answer. PlayerError as `Player.ask`."""
        with self._lock:
            if self._player is None or not self._player.is_alive:
                self._player = PLAYERS.take(self._library, self._python)
            return self._player.ask(method, *arguments)


class Lent:
    """A process of a library for one episode, until it is closed or forgotten."""

    def __init__(self, library: str, python: str):
        """ValueError if there is no such interpreter."""
        self._player = PLAYERS.take(library, python)
        # Who plays may forget to close it.
        self._give_back = weakref.finalize(self, PLAYERS.give_back, self._player)
        self._give_back.atexit = False

    def close(self) -> None:
        """May be called again."""
        self._give_back()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns the library's answer. PlayerError as `Player.ask`, and after `close`."""
        if not self._give_back.alive:
            raise PlayerError("the game has been closed")
        return self._player.ask(method, *arguments)


class Game(Lent):
    """One environment of a library, in a process of its own, with gem's contract."""

    def __init__(self, library: str, name: str, python: str):
        """ValueError for an environment that the library does not know, or cannot make."""
        super().__init__(library, python)
        try:
            self.ask("make", name)
        except PlayerError as error:
            self.close()
            raise ValueError(f"{library} cannot make {name!r:.80}: {error}") from error

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Starts an episode; returns the first observation and the library's info.

        Errors, also of `step`: PlayerError, after which the game cannot be continued.
        """
        observation, info = self.ask("reset", seed)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Returns observation, reward, terminated, truncated, and the library's info."""
        observation, reward, terminated, truncated, info = self.ask("step", action)
        return observation, reward, terminated, truncated, info


@functools.lru_cache(maxsize=16)
def names_of(library: str, python: str) -> tuple[str, ...]:
    """Returns what a library can play without a network. ValueError if it is not installed."""
    player = PLAYERS.take(library, python)
    try:
        return tuple(player.ask("names"))
    except PlayerError as error:
        player.close()
        raise ValueError(
            f"{python or sys.executable} has no {library} ({error}); "
            f"type: {INSTALLED_BY[library]} (docs/worlds.md has the option `python`)"
        ) from error
    finally:
        PLAYERS.give_back(player)


class FamiliesOf(Mapping[str, Items]):
    """All that a library can play, each a family of seeds. It is asked when one is looked for."""

    def __init__(self, library: str, python: str):
        self._library, self._python = library, python

    def __getitem__(self, name: str) -> Items:
        if name not in names_of(self._library, self._python):
            raise KeyError(name)
        return Seeds()

    def __iter__(self) -> Iterator[str]:
        return iter(names_of(self._library, self._python))

    def __len__(self) -> int:
        return len(names_of(self._library, self._python))
