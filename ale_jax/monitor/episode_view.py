"""Which real episodes the report tells turn by turn, and the colour of each chunk's credit."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from ale_jax.monitor.trajectories import TrajectorySample, TurnSample

MAX_EPISODES = 4
# Beyond this a tint would eat the contrast of the text on it.
MAX_TINT = 34.0


@dataclasses.dataclass(frozen=True)
class TurnView:
    """tint: strength of the credit's colour, in percent; width: share of the policy's tokens."""

    turn: TurnSample
    sign: str
    tint: float
    width: float


@dataclasses.dataclass(frozen=True)
class EpisodeView:
    sample: TrajectorySample
    succeeded: bool
    turns: tuple[TurnView, ...]


def succeeded(sample: TrajectorySample) -> bool:
    """Whether the verifier was content: rewards are positive then, and only then."""
    return sample.reward > 0


def episode_views(samples: Sequence[TrajectorySample]) -> list[EpisodeView]:
    """The episodes to tell: first two that differ only in what the policy did, if there are."""
    chosen = choose(samples)
    largest = max((abs(t.advantage) for s in chosen for t in s.turns), default=0.0)
    return [
        EpisodeView(s, succeeded(s), tuple(_turn_view(t, s, largest) for t in s.turns))
        for s in chosen
    ]


def choose(samples: Sequence[TrajectorySample]) -> list[TrajectorySample]:
    """A success and a failure of one group, the latest there is; then the latest of other families.

    Without such a group: the latest success and the latest failure.
    """
    chosen = _contrast(samples)
    families = {sample.family for sample in chosen}
    for sample in reversed(samples):
        if len(chosen) >= MAX_EPISODES:
            break
        if sample.family not in families:
            chosen.append(sample)
            families.add(sample.family)
    return chosen


def _contrast(samples: Sequence[TrajectorySample]) -> list[TrajectorySample]:
    groups = collections.defaultdict(list)
    for sample in samples:
        groups[sample.step, sample.family, sample.seed].append(sample)
    # The latest group may be small talk: one with more turns has more to tell about credit.
    by_interest = sorted(groups.values(), key=lambda g: (len(g[0].turns) > 1, g[0].step))
    for group in (*reversed(by_interest), samples):
        successes = [s for s in group if succeeded(s)]
        failures = [s for s in group if not succeeded(s)]
        if successes and failures:
            return [successes[-1], failures[-1]]
    return list(samples[-1:])


def _turn_view(turn: TurnSample, sample: TrajectorySample, largest: float) -> TurnView:
    tokens = sum(t.tokens for t in sample.turns)
    strength = abs(turn.advantage) / largest if largest else 0.0
    return TurnView(
        turn=turn,
        sign="positive" if turn.advantage > 0 else "negative" if turn.advantage < 0 else "zero",
        tint=round(MAX_TINT * strength, 1),
        width=round(100 * turn.tokens / tokens, 2) if tokens else 0.0,
    )
