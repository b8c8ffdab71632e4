"""Are pass@k and the verdicts of comparisons right? By exact values, and simulated policies."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ale_jax.evaluation.compare import compare
from ale_jax.evaluation.episodes import EpisodeRecord, Result
from ale_jax.evaluation.exact import pass_at_k
from ale_jax.evaluation.statistics import summarize
from ale_jax.evaluation.verdict import Verdict
from ale_jax.status import Status

GAPS = (0.0, 0.03, 0.10)
SIZES = ((40, 1), (100, 2), (300, 1), (100, 8))  # items, samples of each
SAMPLES = 64


def pass_at_k_error(runs: int) -> float:
    """Returns the largest difference to exact fractions: of pass@k with up to SAMPLES samples, and
    of its means over the items of `runs` made results."""
    worst = Fraction(0)
    for samples in range(1, SAMPLES + 1):
        for solved, k in itertools.product(range(samples + 1), range(1, samples + 1)):
            found = Fraction(pass_at_k(samples, solved, k))
            worst = max(worst, abs(found - _exact(samples, solved, k)))
    for seed in range(runs):
        draw = random.Random(seed)
        samples, items = draw.randint(1, 16), draw.randint(1, 60)
        solved = [draw.randint(0, samples) for _ in range(items)]
        solves = lambda item, sample, solved=solved: sample < solved[item]  # noqa: E731
        made = _result("made", samples, solves, items)
        for k, found in summarize(made.episodes).pass_at_k.items():
            exact = sum(_exact(samples, each, k) for each in solved) / items
            worst = max(worst, abs(Fraction(found.value) - exact))
    return float(worst)


def _exact(samples: int, solved: int, k: int) -> Fraction:
    return 1 - Fraction(math.comb(samples - solved, k), math.comb(samples, k))


def wrong_verdicts(pairs: int) -> dict[str, dict[str, Any]]:
    """Simulates `pairs` pairs of policies for each gap; returns, by points, how many comparisons
    are wrong (a difference where there is none, or the worse one as better), and how many tell."""
    found = {}
    for gap in GAPS:
        verdicts = [_verdict(seed, gap) for seed in range(pairs)]
        better, worse = (verdicts.count(each) for each in (Verdict.BETTER, Verdict.WORSE))
        wrong = worse if gap else better + worse
        told = {"pairs": pairs, "wrong": wrong, "right": better if gap else pairs - wrong}
        found[f"{100 * gap:g}"] = told
    return found


def _verdict(seed: int, gap: float) -> Verdict:
    """The items are drawn from some of which the second policy solves `gap` more on the average.
    They are of any difficulty, and favour either policy."""
    draw = random.Random(seed)
    items, samples = SIZES[seed % len(SIZES)]
    bent = draw.uniform(0.3, 3.0)
    rates: list[tuple[float, float]] = []
    for _ in range(items):
        middle = draw.betavariate(bent, bent) * (1 - gap) + gap / 2
        most = min(middle - gap / 2, 1 - gap / 2 - middle)  # both stay rates
        half = gap / 2 + draw.uniform(-most, most)
        rates.append((middle - half, middle + half))
    first, second = (
        _result(
            ("first", "second")[side],
            samples,
            lambda item, _, side=side: draw.random() < rates[item][side],
            items,
        )
        for side in (0, 1)
    )
    return compare([first, second])[0].verdict


def _result(name: str, samples: int, solves: Callable[[int, int], bool], items: int) -> Result:
    episodes = [
        _episode(item, sample, solves(item, sample))
        for item in range(items)
        for sample in range(samples)
    ]
    return Result(name, tuple(episodes))


def _episode(item: int, sample: int, solved: bool) -> EpisodeRecord:
    return EpisodeRecord(
        world="made",
        family="made",
        item=item,
        sample=sample,
        status=Status.FINISHED,
        reward=float(solved),
        rewards={},
        solved=solved,
        turns=1,
        policy_tokens=1,
        truncated=False,
        seconds=1.0,
        metadata={},
        messages=(),
    )
