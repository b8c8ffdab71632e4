"""The environments of gem-llm, and those of textarena for one player, as they are."""

from __future__ import annotations

from ale_jax.worlds.api import NoVerdictError, Step
from ale_jax.worlds.bridges.process import FamiliesOf, Game, PlayerError
from ale_jax.worlds.gym import GymWorld
from ale_jax.worlds.items import Item


class LibraryGames(GymWorld):
    """python: an interpreter that has the library; "" for ours."""

    library: str

    def __init__(self, python: str = ""):
        self._python = python
        self.families = FamiliesOf(self.library, python)

    def make(self, item: Item) -> Game:
        """Returns the environment that the family is named after."""
        return Game(self.library, item.family, self._python)

    def step(self, reply: str) -> Step:
        """Plays a reply. One that the library cannot take counts as a failure: an episode that is
        lost instead would be worth more than a wrong one."""
        try:
            return super().step(reply)
        except PlayerError as error:
            raise NoVerdictError(f"{self.library}: {error}") from error


class Gem(LibraryGames):
    library = "gem"


class TextArena(LibraryGames):
    library = "textarena"
