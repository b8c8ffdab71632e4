"""What the episodes of one evaluation say: in all, and by world, family and column of metadata."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from ale_jax.evaluation import intervals
from ale_jax.evaluation.episodes import EpisodeRecord, ItemKey
from ale_jax.evaluation.exact import pass_at_k
from ale_jax.evaluation.intervals import Estimate

# A column with more values, such as a question's number, says nothing about groups of items.
MAX_VALUES = 20


@dataclasses.dataclass(frozen=True)
class Summary:
    """An episode is counted once, in solved, wrong, truncated (judged where a limit ended it, and
    not solved) or no_verdict. The rates are over those that were judged, and truncated ones count
    as what they were judged.

    samples: most that an item has. pass_at_k: by k; an item with fewer judged samples is left out
    of it. avg_at_n: pass@1 of the items all of whose samples were judged. pass_if_lost: the lowest
    and highest pass@1, whatever the missing verdicts were. turns, policy_tokens, seconds: means
    over all episodes.
    """

    items: int
    samples: int
    episodes: int
    solved: int
    wrong: int
    truncated: int
    no_verdict: int
    pass_at_k: Mapping[int, Estimate]
    avg_at_n: Estimate | None
    pass_if_lost: tuple[float, float]
    reward: Estimate | None
    rewards: Mapping[str, Estimate]
    metrics: Mapping[str, Estimate]
    turns: float
    policy_tokens: float
    seconds: float


def summarize(episodes: Sequence[EpisodeRecord]) -> Summary:
    """Summarizes at least one episode."""
    judged = [each for each in episodes if each.judged]
    failed = [each for each in judged if not each.solved]
    truncated = sum(each.truncated for each in failed)
    every, verdicts = by_item(episodes), by_item(judged)
    samples = max(map(len, every.values()))
    complete = [each for each in verdicts.values() if len(each) == samples]
    return Summary(
        items=len(every),
        samples=samples,
        episodes=len(episodes),
        solved=len(judged) - len(failed),
        wrong=len(failed) - truncated,
        truncated=truncated,
        no_verdict=len(episodes) - len(judged),
        pass_at_k={k: found for k in _ks(samples) if (found := _pass_at(k, verdicts.values()))},
        avg_at_n=_pass_at(1, complete),
        pass_if_lost=(
            statistics.fmean(_share(its, lambda each: each.solved) for its in every.values()),
            statistics.fmean(
                _share(its, lambda each: each.solved or not each.judged) for its in every.values()
            ),
        ),
        reward=_reward(verdicts.values()),
        rewards=_named(judged, lambda each: each.rewards),
        metrics=_named(judged, lambda each: each.metrics),
        turns=statistics.fmean(each.turns for each in episodes),
        policy_tokens=statistics.fmean(each.policy_tokens for each in episodes),
        seconds=statistics.fmean(each.seconds for each in episodes),
    )


def breakdown(episodes: Sequence[EpisodeRecord]) -> dict[str, dict[str, Summary]]:
    """Returns summaries by "world", by "family" (WORLD/FAMILY), and by each column of metadata that
    has at most MAX_VALUES values ("metadata.COLUMN")."""
    groups: dict[str, dict[str, list[EpisodeRecord]]] = {}
    for each in episodes:
        places = {"world": each.world, "family": f"{each.world}/{each.family}"}
        places |= {f"metadata.{column}": str(value) for column, value in each.metadata.items()}
        for column, value in places.items():
            groups.setdefault(column, {}).setdefault(value, []).append(each)
    return {
        column: {value: summarize(its) for value, its in sorted(values.items())}
        for column, values in groups.items()
        if column in ("world", "family") or len(values) <= MAX_VALUES
    }


def by_item(episodes: Iterable[EpisodeRecord]) -> dict[ItemKey, list[EpisodeRecord]]:
    found = collections.defaultdict(list)
    for each in episodes:
        found[each.key].append(each)
    return dict(found)


def _ks(samples: int) -> list[int]:
    """Returns the powers of two up to the number of samples, and this.

    >>> _ks(6)
    [1, 2, 4, 6]
    """
    return sorted({*(1 << bit for bit in range(samples.bit_length())), samples})


Items = Iterable[Sequence[EpisodeRecord]]


def _pass_at(k: int, items: Items) -> Estimate | None:
    rates = [
        pass_at_k(len(its), sum(each.solved for each in its), k) for its in items if len(its) >= k
    ]
    return intervals.rate(rates) if rates else None


def _reward(items: Items) -> Estimate | None:
    means = [statistics.fmean(each.reward or 0.0 for each in its) for its in items]
    return intervals.mean(means) if means else None


def _named(
    judged: Sequence[EpisodeRecord], of: Callable[[EpisodeRecord], Mapping[str, float]]
) -> dict[str, Estimate]:
    """Returns the mean of each number by name over the episodes that have it."""
    found = {}
    for name in sorted({name for each in judged for name in of(each)}):
        having = by_item(each for each in judged if name in of(each)).values()
        means = [statistics.fmean(of(each)[name] for each in its) for its in having]
        found[name] = intervals.mean(means)
    return found


def _share(its: Sequence[EpisodeRecord], counts: Callable[[EpisodeRecord], bool]) -> float:
    return sum(map(counts, its)) / len(its)
