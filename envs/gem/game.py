"""The games of gem-llm as environments, each in its own process (see player.py)."""

from __future__ import annotations

import json
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from ale_jax.sandbox.api import SandboxError

PLAYER = Path(__file__).with_name("player.py")
START_S, ANSWER_S = 60.0, 30.0
MAX_ANSWER = 1 << 20


class GameError(SandboxError):
    """The game ended unexpectedly, or the library reported an error."""


class GemGame:
    """One game, which must be closed. python: of an environment that has gem-llm."""

    def __init__(self, env_id: str, python: str):
        """Errors: ValueError for a game that the library does not know, or cannot make."""
        self._player = _Player(python, [env_id])
        try:
            self._player.answer("game", START_S)
        except GameError as error:
            self.close()
            raise ValueError(f"env_id {env_id!r:.80} cannot be made: {error}") from error

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Starts an episode; returns the instruction and the library's info.

        Errors, also of `step`: GameError, after which the game cannot be continued.
        """
        return tuple(self._player.ask({"seed": seed}, "reset"))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated, and the library's info."""
        return tuple(self._player.ask({"action": action}, "step"))

    def close(self) -> None:
        """May be called again."""
        self._player.close()


def known_games(python: str) -> list[str]:
    """Names of the games that need no network. ValueError if the environment has no gem-llm."""
    player = _Player(python, [])
    try:
        return player.answer("games", START_S)
    except GameError as error:
        raise ValueError(f"{python} has no gem-llm ({error}); type: make gem") from error
    finally:
        player.close()


class _Player:
    """The player's process, and requests to it."""

    def __init__(self, python: str, words: list[str]):
        self._process = subprocess.Popen(
            [python, "-I", str(PLAYER), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C at the terminal must not reach it
        )

    def ask(self, request: dict[str, Any], name: str) -> Any:
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise GameError("the game has ended") from error
        return self.answer(name, ANSWER_S)

    def answer(self, name: str, seconds: float) -> Any:
        line, deadline = b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                self._process.kill()
                raise GameError(f"the game did not answer within {seconds:g} s")
            piece = self._process.stdout.read(1 << 16)
            line += piece
            if not piece or len(line) > MAX_ANSWER:
                self._process.kill()
                raise GameError("the game ended unexpectedly")
        answer = json.loads(line)
        if name not in answer:
            raise GameError(f"{answer.get('error', answer)}"[:500])
        return answer[name]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
