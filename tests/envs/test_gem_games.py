"""The games of gem-llm, each in a process of its own: as in the library, and each by itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.gem.game import GameError, GemGame, known_games
from envs.serve import worlds

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
