"""What the episodes of an evaluation took in tokens, and in money."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ale_jax.evaluation.episodes import EpisodeRecord

MILLION = 1_000_000


@dataclasses.dataclass(frozen=True)
class Prices:
    """Of a million tokens that the policy reads, and of a million that it writes, in any currency.

    >>> Prices.read("0.5,2")
    Prices(prompt=0.5, reply=2.0)
    """

    prompt: float
    reply: float

    @classmethod
    def read(cls, given: str) -> Prices:
        """ValueError if it is not two prices."""
        try:
            prompt, reply = map(float, given.split(","))
            is_price = all(math.isfinite(each) and each >= 0 for each in (prompt, reply))
        except ValueError:
            is_price = False
        if not is_price:
            raise ValueError(
                f"--prices={given!r:.80} must be IN,OUT: of a million tokens that are read, and of "
                "a million that are written, e.g. 0.5,2"
            )
        return cls(prompt, reply)


@dataclasses.dataclass(frozen=True)
class Cost:
    """prompt_tokens: None if of some episodes nobody knows them. money: None without them, or
    without prices."""

    prompt_tokens: int | None
    policy_tokens: int
    money: float | None

    @classmethod
    def of(cls, episodes: Sequence[EpisodeRecord], prices: Prices | None) -> Cost:
        """Adds up the last attempts of all episodes, as those that were retried are not kept."""
        known = [each.prompt_tokens for each in episodes if each.prompt_tokens is not None]
        prompt = sum(known) if len(known) == len(episodes) else None
        reply = sum(each.policy_tokens for each in episodes)
        money = None
        if prices is not None and prompt is not None:
            money = (prompt * prices.prompt + reply * prices.reply) / MILLION
        return cls(prompt, reply, money)

    def __str__(self) -> str:
        read = "" if self.prompt_tokens is None else f" and {self.prompt_tokens:,} read"
        money = "" if self.money is None else f", which cost {self.money:.4g}"
        return f"tokens: {self.policy_tokens:,} written{read}{money}"
