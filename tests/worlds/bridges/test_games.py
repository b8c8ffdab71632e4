"""The environments of gem-llm and textarena: as in the library, each in a process of its own."""

import sys

import pytest

from ale_jax.agent.api import Reply
from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.envs.serve import worlds
from ale_jax.records import EpisodeKey, Status, Task
from ale_jax.worlds.bridges.games import Gem, TextArena
from ale_jax.worlds.bridges.process import Game, PlayerError, names_of
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import Item
from benchmarks.worlds.bridges import compare
from tests.worlds.bridges.libraries import python_of

pytestmark = pytest.mark.heavy

GAME = "game:Sokoban-v0-easy"
GUESS = "game:GuessTheNumber-v0-easy"
PLAYED = {
    "gem": (GAME, GUESS, "game:Minesweeper-v0-easy", "game:Sudoku-v0-easy", "rg:leg_counting"),
    "textarena": ("Mastermind-v0-train", "2048-v0", "FrozenLake-v0-train", "Countdown-v0"),
}


@pytest.mark.parametrize("library", PLAYED)
def test_environments_are_the_librarys(library):
    found = compare(library, python_of(library), 4, PLAYED[library])
    assert (found.exceptions, found.equal) == ({}, len(PLAYED[library]))
    assert found.episodes == 4 * found.equal and found.steps > found.episodes


def test_games_side_by_side_do_not_meet():
    python = python_of("gem")
    games = [Game("gem", GAME, python) for _ in range(2)]
    openings = [game.reset(7) for game in games]
    moves = [game.step("\\boxed{left}") for game in games for _ in range(2)]
    assert openings[0] == openings[1] and moves[:2] == moves[2:]
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


def test_a_game_is_played_by_the_loop_as_it_is():
    """It has no more than GEM's contract: no grade, no prompt, and rewards below 0."""
    key, limits = EpisodeKey("train", 0, 0, Task(GUESS, 7, "train")), AgentLimits(turns=4)
    game = CheckedWorld(Gem(python_of("gem")), Item(GUESS, 7, "train"), None)
    won = play(game, Bisects(), key, limits)
    assert (won.status, won.reward) == (Status.FINISHED, 1.0)
    assert won.step_rewards == (0.0,) * (won.turns - 1) + (1.0,)
    lost = play(game, ScriptedPolicy(["seven"]), key, limits)
    assert (lost.status, lost.reward, lost.turns) == (Status.FINISHED, -0.1, 1)
    cut = play(game, Bisects(), key, AgentLimits(turns=1))
    assert (cut.status, cut.reward) == (Status.TURN_LIMIT, 0.0)


@pytest.mark.parametrize(
    ("world", "library", "name", "reply"),
    [
        (Gem, "gem", "rg:prime_factorization", "\\boxed{junk}"),
        (TextArena, "textarena", "Countdown-v0", "[9 9 +]"),
    ],
)
def test_a_reply_on_which_the_library_raises_is_a_failure(world, library, name, reply):
    """And no lost episode, which would be left out of training."""
    game = CheckedWorld(world(python_of(library)), Item(name, 7, "train"), None)
    key = EpisodeKey("train", 0, 0, Task(name, 7, "train"))
    episode = play(game, ScriptedPolicy([reply] * 4), key, AgentLimits(turns=4))
    assert (episode.status, episode.reward) == (Status.NO_VERDICT, 0.0)


def test_what_needs_no_network_is_known_and_served():
    python = python_of("gem")
    games = names_of("gem", python)
    assert GAME in games and len(games) > 100
    assert set(games) < set(worlds(python))


def test_families_are_named_in_a_config():
    options = (("python", python_of("textarena")),)
    families = open_families((Domain("textarena", ("Mastermind-v0-train",), options),))
    assert [family.name for family in families] == ["Mastermind-v0-train"]
    with pytest.raises(ValueError, match=r"'Chess-v0' is unknown to world textarena"):
        open_families((Domain("textarena", ("Chess-v0",), options),))


def test_what_the_library_refuses_is_told():
    with pytest.raises(ValueError, match=r"'game:Nothing'.*not found in registry"):
        Game("gem", "game:Nothing", python_of("gem"))


@pytest.mark.parametrize(("python", "told"), [(sys.executable, "has no"), ("/none", "be started")])
@pytest.mark.parametrize(("library", "make"), [("gem", "gem"), ("textarena", "textarena")])
def test_an_environment_without_the_library_says_what_to_type(library, make, python, told):
    with pytest.raises(ValueError, match=f"{told}.*type: make {make}"):
        names_of(library, python)


def test_a_game_that_was_closed_is_not_played_by_two():
    python = python_of("gem")
    game = Game("gem", GAME, python)
    game.close()
    game.close()
    other = Game("gem", GAME, python)
    with pytest.raises(PlayerError, match="has been closed"):
        game.reset(1)
    other.close()
