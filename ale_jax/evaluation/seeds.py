"""Compares the evaluations of runs of several seeds: the seed is the unit, and not the item."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from ale_jax.evaluation import intervals
from ale_jax.evaluation.compare import Comparison, compare
from ale_jax.evaluation.episodes import Result
from ale_jax.evaluation.exact import holm
from ale_jax.evaluation.intervals import Estimate
from ale_jax.evaluation.power import Power, power
from ale_jax.evaluation.stopping import LOOKS, decided, paired
from ale_jax.evaluation.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class Group:
    """The evaluations of one config's runs, in the order of their seeds."""

    name: str
    runs: tuple[Result, ...]


@dataclasses.dataclass(frozen=True)
class SeedComparison:
    """A group against the first. by_seed: its pass@1 less the first's, over what the two runs of a
    seed share; pass_at_1: the mean over seeds. p_value: of a paired t test, 1 without any spread;
    corrected: for the number of comparisons. reason: why nothing can be told, or empty."""

    first: str
    second: str
    by_seed: tuple[float, ...]
    pass_at_1: Estimate
    p_value: float
    corrected: float
    verdict: Verdict
    reason: str
    power: Power
    unpaired: Mapping[str, int]


def compare_seeds(groups: Sequence[Group]) -> list[SeedComparison]:
    """Compares each group with the first, seed by seed.

    ValueError if they differ in the number of seeds, or two runs of a seed have nothing in common.
    """
    first, *others = groups
    for other in others:
        if len(other.runs) != len(first.runs):
            raise ValueError(
                f"{first.name} has {len(first.runs)} runs and {other.name} {len(other.runs)}: they "
                "are compared seed by seed, so name as many of each, in the order of their seeds"
            )
    every = [[compare(both)[0] for both in zip(first.runs, other.runs)] for other in others]
    p_values = [paired(_by_seed(its)).p_value for its in every]
    known = [1.0 if each is None else each for each in p_values]
    return [
        _comparison((first.name, other.name), its, p_value, corrected, len(others))
        for other, its, p_value, corrected in zip(others, every, known, holm(known), strict=True)
    ]


def _comparison(
    names: tuple[str, str],
    its: Sequence[Comparison],
    p_value: float,
    corrected: float,
    comparisons: int,
) -> SeedComparison:
    by_seed = _by_seed(its)
    verdict, reason = _judge(by_seed, corrected)
    unpaired = collections.Counter[str]()
    for each in its:
        unpaired.update(each.unpaired)
    return SeedComparison(
        *names,
        by_seed=tuple(by_seed),
        pass_at_1=intervals.mean(by_seed),
        p_value=p_value,
        corrected=corrected,
        verdict=verdict,
        reason=reason,
        power=power(statistics.variance(by_seed), len(by_seed), comparisons, min(LOOKS)),
        unpaired=dict(unpaired),
    )


def _by_seed(its: Sequence[Comparison]) -> list[float]:
    return [each.differences.pass_at_1.value for each in its]


def _judge(by_seed: Sequence[float], p_value: float) -> tuple[Verdict, str]:
    if (known := decided(p_value, len(by_seed))) is None:
        looks = ", ".join(map(str, LOOKS))
        return Verdict.CANNOT_TELL, f"the rule looks after {looks} seeds, not after {len(by_seed)}"
    if not known:
        asked = f"the rule asks for p = {LOOKS[len(by_seed)]:g} after {len(by_seed)} seeds"
        return Verdict.CANNOT_TELL, asked
    return (Verdict.BETTER if statistics.fmean(by_seed) > 0 else Verdict.WORSE), ""
