"""Compares evaluations, paired by item and sample, and says what they do not tell."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from ale_jax.evaluation import intervals
from ale_jax.evaluation.episodes import EpisodeRecord, Result
from ale_jax.evaluation.exact import holm, sign_flip_p
from ale_jax.evaluation.intervals import LEVEL, Estimate
from ale_jax.evaluation.pairing import Pair, Pairs, pair
from ale_jax.evaluation.power import Power, power
from ale_jax.evaluation.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class Differences:
    """A result less the first, over the same pairs. first, second: both pass@1. won, lost: items of
    which the result solved more samples than the first, or fewer."""

    first: float
    second: float
    pass_at_1: Estimate
    reward: Estimate
    won: int
    lost: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A result against the first.

    p_value: exact, of pass@1; corrected: for the number of comparisons. if_lost: the lowest and
    highest difference of pass@1, whatever the missing verdicts of pairs were. reason: why nothing
    can be told, or empty. families: by WORLD/FAMILY, for a reader; no verdict is made of them.
    """

    first: str
    second: str
    pairs: int
    differences: Differences
    p_value: float
    corrected: float
    if_lost: tuple[float, float]
    verdict: Verdict
    reason: str
    power: Power
    families: Mapping[str, Differences]
    unpaired: Mapping[str, int]


def compare(results: Sequence[Result]) -> list[Comparison]:
    """Compares each result with the first.

    ValueError if two have nothing in common.
    """
    first, *others = results
    every = [pair(first, other) for other in others]
    p_values = [sign_flip_p([_net_wins(its) for its in pairs.items.values()]) for pairs in every]
    return [
        _comparison((first.name, other.name), pairs, p_value, corrected, len(others))
        for other, pairs, p_value, corrected in zip(
            others, every, p_values, holm(p_values), strict=True
        )
    ]


def _comparison(
    names: tuple[str, str], pairs: Pairs, p_value: float, corrected: float, comparisons: int
) -> Comparison:
    found = _differences(list(pairs.items.values()))
    if_lost = _if_lost(pairs)
    verdict, reason = judge(found.pass_at_1, corrected, if_lost)
    _, variance = intervals.with_two_more([_of_item(its, _solved) for its in pairs.items.values()])
    families: dict[str, list[tuple[Pair, ...]]] = {}
    for (world, family, _), its in pairs.items.items():
        families.setdefault(f"{world}/{family}", []).append(its)
    return Comparison(
        *names,
        pairs=sum(map(len, pairs.items.values())),
        differences=found,
        p_value=p_value,
        corrected=corrected,
        if_lost=if_lost,
        verdict=verdict,
        reason=reason,
        power=power(variance, len(pairs.items), comparisons),
        families={name: _differences(items) for name, items in families.items()},
        unpaired=pairs.unpaired,
    )


def judge(
    difference: Estimate, p_value: float, if_lost: tuple[float, float]
) -> tuple[Verdict, str]:
    """Returns the verdict and, if nothing can be told, why.

    The test is exact if neither policy is favoured at any item. The interval also knows of items
    that differ much and are rare, and lost verdicts must not be what makes the difference.
    """
    assert difference.low is not None and difference.high is not None
    if p_value > LEVEL:
        return Verdict.CANNOT_TELL, "the difference may be chance"
    if difference.low <= 0 <= difference.high:
        return Verdict.CANNOT_TELL, "so few items may miss those that differ much"
    better = difference.low > 0
    if if_lost[0] <= 0 if better else if_lost[1] >= 0:
        return Verdict.CANNOT_TELL, "the missing verdicts may turn it"
    return (Verdict.BETTER if better else Verdict.WORSE), ""


def _differences(items: Sequence[Sequence[Pair]]) -> Differences:
    net_wins = [_net_wins(its) for its in items]
    sides = ([[_solved(both[side]) for both in its] for its in items] for side in (0, 1))
    first, second = (statistics.fmean(map(statistics.fmean, solved)) for solved in sides)
    return Differences(
        first=first,
        second=second,
        pass_at_1=intervals.difference([_of_item(its, _solved) for its in items]),
        reward=intervals.mean([_of_item(its, _reward) for its in items]),
        won=sum(each > 0 for each in net_wins),
        lost=sum(each < 0 for each in net_wins),
    )


def _solved(episode: EpisodeRecord) -> float:
    return float(episode.solved)


def _reward(episode: EpisodeRecord) -> float:
    assert episode.reward is not None, "it was judged"
    return episode.reward


def _of_item(its: Sequence[Pair], value: Callable[[EpisodeRecord], float]) -> float:
    return statistics.fmean(value(second) - value(first) for first, second in its)


def _net_wins(its: Sequence[Pair]) -> int:
    return sum(int(second.solved) - int(first.solved) for first, second in its)


def _if_lost(pairs: Pairs) -> tuple[float, float]:
    """Returns the lowest and the highest difference if each missing verdict were the worst, and the
    best, for the second result."""

    def extreme(solved_first: bool) -> float:
        means = []
        for key in {**pairs.items, **pairs.lost}:
            its = [*pairs.items.get(key, ()), *pairs.lost.get(key, ())]
            means.append(
                statistics.fmean(
                    (second.solved if second.judged else not solved_first)
                    - (first.solved if first.judged else solved_first)
                    for first, second in its
                )
            )
        return statistics.fmean(means)

    return extreme(True), extreme(False)
