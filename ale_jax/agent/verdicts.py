"""Verdicts that need no sandbox, and may therefore come after an episode's place is free."""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

from ale_jax.agent.failures import FAILURES, status_of
from ale_jax.records import Episode
from ale_jax.status import STATUS_RULES, Status
from ale_jax.worlds.api import NoVerdictError, VerdictRefusedError, VerifierError
from ale_jax.worlds.checked import CheckedWorld


class Judged(NamedTuple):
    """episode: with its verdict, or with the failure that kept it from one. is_final: False if the
    verdict alone can be asked for again."""

    episode: Episode
    is_final: bool = True


@dataclasses.dataclass(frozen=True)
class Played:
    """An episode whose interaction is over. world: which still judges it, without its sandbox; None
    if nothing is left to judge. episode: what is known without that."""

    episode: Episode
    world: CheckedWorld | None = None

    @classmethod
    def of(cls, episode: Episode, world: CheckedWorld) -> Played:
        """Returns an episode of a world, which judges it if its end can be judged."""
        can_be = STATUS_RULES[episode.status].reward_valid and episode.status != Status.NO_VERDICT
        return cls(episode, world if can_be and world.is_judged_apart else None)

    def judged(self) -> Judged:
        """Asks for the verdict. Failures of the system become the episode's status. Its seconds are
        those of this verdict, and not of others that failed before."""
        episode, world = self.episode, self.world
        if world is None:
            return Judged(episode)
        assert episode.reward is not None, "its end can be judged"
        world.rewards = episode.rewards  # without those of a verdict that failed half-way
        start, is_final = time.monotonic(), True
        try:
            episode = dataclasses.replace(episode, reward=episode.reward + world.verdict())
            episode = dataclasses.replace(episode, metrics=world.metrics())
        except NoVerdictError as error:  # it counts as 0, and what steps have earned stays
            status = Status.NO_VERDICT
            episode = dataclasses.replace(self.episode, status=status, detail=str(error))
        except FAILURES as error:
            # After an error that is not of the interface, nobody knows what state the world is in.
            is_failed = isinstance(error, VerifierError)
            is_final = not is_failed or isinstance(error, VerdictRefusedError)
            status, detail = status_of(error), f"{type(error).__name__}: {error}"
            episode = dataclasses.replace(episode, status=status, reward=None, detail=detail)
        seconds = time.monotonic() - start
        episode = dataclasses.replace(
            episode,
            rewards=world.rewards,
            seconds=episode.seconds + seconds,
            env_seconds=episode.env_seconds + seconds,
            verifier_seconds=episode.verifier_seconds + seconds,
        )
        return Judged(episode, is_final)
