"""The games of gem-llm, each in a process of its own: as in the library, and each by itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ale_jax.agent.api import Reply
from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.envs.gem.game import GameError, GemGame, known_games
from ale_jax.envs.serve import worlds
from ale_jax.records import EpisodeKey, Status, Task
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.gym import GymWorld
from ale_jax.worlds.items import Item

pytestmark = pytest.mark.heavy

PYTHON = Path(os.environ.get("ALE_GEM_PYTHON", Path(__file__).parents[2] / ".venv-gem/bin/python"))
GAME = "game:Sokoban-v0-easy"
MOVES = ("left", "up", "nonsense", "right", "down", "down")
IN_PROCESS = f"""
import gem, json
game = gem.make({GAME!r})
print(json.dumps([game.reset(7), *(game.step(f"\\\\boxed{{{{{{move}}}}}}") for move in {MOVES!r})]))
"""


@pytest.fixture
def python():
    if not PYTHON.exists():
        pytest.skip("gem-llm is not installed; type: make gem")
    return str(PYTHON)


def played(*games):
    """What each of `games` says, when they are played by turns."""
    told = [[list(game.reset(7))] for game in games]
    for move in MOVES:
        for game, heard in zip(games, told):
            heard.append(list(game.step(f"\\boxed{{{move}}}")))
    return told


def test_a_game_is_the_librarys_whoever_plays_beside_it(python):
    done = subprocess.run([python, "-c", IN_PROCESS], capture_output=True, text=True, check=True)
    expected = json.loads(done.stdout.splitlines()[-1])
    games = [GemGame(GAME, python) for _ in range(2)]
    try:
        assert played(*games) == [expected, expected]
        assert len({str(observation) for observation, *_ in expected}) > 2
    finally:
        for game in games:
            game.close()


class Bisects:
    """Guesses a number from 1 to 10 by the game's hints."""

    def __init__(self):
        self._low, self._high, self._guess = 1, 10, 0

    def reply(self, new_messages):
        told = new_messages[-1].content
        if "lower than" in told:
            self._high = self._guess - 1
        elif "higher than" in told:
            self._low = self._guess + 1
        self._guess = (self._low + self._high) // 2
        return Reply(f"\\boxed{{{self._guess}}}", "stop")


class Guess(GymWorld):
    def __init__(self, python):
        self._python = python

    def make(self, item):
        return GemGame("game:GuessTheNumber-v0-easy", self._python)


def test_a_game_is_played_by_the_loop_as_it_is(python):
    """It has no more than GEM's contract: no grade, no prompt, and rewards below 0."""
    key, limits = EpisodeKey("train", 0, 0, Task("guess", 7, "train")), AgentLimits(turns=4)
    guess = Guess(python)
    game = CheckedWorld(guess, Item("guess", 7, "train"), None)
    try:
        won = play(game, Bisects(), key, limits)
        assert (won.status, won.reward) == (Status.FINISHED, 1.0)
        assert won.step_rewards == (0.0,) * (won.turns - 1) + (1.0,)
        lost = play(game, ScriptedPolicy(["seven"]), key, limits)
        assert (lost.status, lost.reward, lost.turns) == (Status.FINISHED, -0.1, 1)
        cut = play(game, Bisects(), key, AgentLimits(turns=1))
        assert (cut.status, cut.reward) == (Status.TURN_LIMIT, 0.0)
    finally:
        guess.close()


def test_the_games_that_need_no_network_are_known(python):
    games = known_games(python)
    assert GAME in games and len(games) > 100
    assert set(games) < set(worlds(python))


def test_what_the_library_refuses_is_told(python):
    with pytest.raises(ValueError, match=r"'game:Nothing'.*not found in registry"):
        GemGame("game:Nothing", python)


def test_an_environment_without_the_library_says_what_to_type():
    with pytest.raises(ValueError, match="type: make gem"):
        worlds(sys.executable)


def test_a_game_that_has_ended_says_so(python):
    game = GemGame(GAME, python)
    game.close()
    game.close()
    with pytest.raises((GameError, ValueError)):
        game.reset(1)


def test_a_game_that_does_not_answer_in_time_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("ale_jax.envs.gem.game.START_S", 0.1)
    with pytest.raises(ValueError, match=r"did not answer within 0\.1 s"):
        GemGame(GAME, player(tmp_path, "exec sleep 3600"))


def player(folder, script) -> str:
    """A program that stands in for the interpreter that plays."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_questions_and_answers_are_lines_that_may_come_in_pieces(tmp_path):
    first = """printf '{"game": '; sleep 0.2; echo '1}'; """
    each = """while read line; do echo "{\\"reset\\": [$line], \\"step\\": [$line]}"; done"""
    game = GemGame(GAME, player(tmp_path, first + each))
    assert game.reset(7) == ({"seed": 7},)
    assert game.step("left") == ({"action": "left"},)
    game.close()


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ('echo \'{"error": "no such seed"}\'', "^no such seed$"),
        ("echo '{\"other\": 1}'", "^{'other': 1}$"),
        ("exit 1", "ended unexpectedly"),
        ("head -c 2000000 /dev/zero; exec sleep 3600", "ended unexpectedly"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_the_game(tmp_path, answers, told):
    game = GemGame(GAME, player(tmp_path, f"echo '{{\"game\": 1}}'; read line; {answers}"))
    with pytest.raises(GameError, match=told):
        game.reset(7)
    game.close()
