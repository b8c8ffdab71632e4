"""Results and comparisons for a person."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ale_jax.evaluation.compare import Comparison, Differences
from ale_jax.evaluation.episodes import Result
from ale_jax.evaluation.intervals import Estimate
from ale_jax.evaluation.power import Power
from ale_jax.evaluation.seeds import SeedComparison
from ale_jax.evaluation.statistics import Summary, breakdown, summarize
from ale_jax.evaluation.verdict import Verdict
from ale_jax.monitor.text import one_line

WIDTH = 200  # if the output is not a terminal
NAME_CHARS = 60

Compared = Sequence[Comparison] | Sequence[SeedComparison]


def show(results: Sequence[Result], comparisons: Compared) -> None:
    """Prints the tables, and what they come to in sentences."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(summaries({each.name: summarize(each.episodes) for each in results}))
    for table in _differences(comparisons):
        console.print(table)
    for line in _sentences(results, comparisons):
        console.print(escape(line), soft_wrap=True)


def show_one(result: Result) -> None:
    """Prints what the episodes of one evaluation tell: in all, and by parts of them."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(summaries({result.name: summarize(result.episodes)}))
    for column, rows in breakdown(result.episodes).items():
        if len(rows) > 1:
            console.print(summaries(rows, f"By {_name(column)}"))
    whole = summarize(result.episodes)
    for what, found in (("reward", whole.rewards), ("metric", whole.metrics)):
        for name, estimate in found.items():
            console.print(escape(f"{what} {one_line(name, NAME_CHARS)}: {_plain(estimate)}"))


def summaries(rows: Mapping[str, Summary], title: str = "Results") -> Table:
    """A table of results, or of the parts of one, by their names. Rates are in percent, and "of 62"
    says that so many items count, as others have fewer judged samples."""
    ks = sorted({k for each in rows.values() for k in each.pass_at_k if k > 1})
    heads = ["", "items", "samples", "pass@1, % (95 %)", *(f"pass@{k}" for k in ks), "avg@n"]
    heads += ["mean reward (95 %)", "solved", "wrong", "truncated", "no verdict"]
    table = Table(*heads, "turns", "tokens", "seconds", title=title)
    for name, each in rows.items():
        rates = [each.pass_at_k.get(k) for k in (1, *ks)]
        counts = (each.solved, each.wrong, each.truncated, each.no_verdict)
        table.add_row(
            _name(name),
            *map(str, (each.items, each.samples)),
            *(_percent(found, each.items) for found in (*rates, each.avg_at_n)),
            _plain(each.reward),
            *map(str, counts),
            *(f"{value:.4g}" for value in (each.turns, each.policy_tokens, each.seconds)),
        )
    return table


def _differences(comparisons: Compared) -> Iterable[Table]:
    by_item = [each for each in comparisons if isinstance(each, Comparison)]
    if by_item:
        yield _by_item(by_item)
    by_seed = [each for each in comparisons if isinstance(each, SeedComparison)]
    if by_seed:
        yield _by_seed(by_seed)


def _by_item(comparisons: Sequence[Comparison]) -> Table:
    heads = ["", "family", "items", "pass@1 of both, %", "difference, points (95 %)"]
    heads += ["of mean reward (95 %)", "items won, lost", "p", "verdict"]
    table = Table(*heads, title=f"Less {_name(comparisons[0].first)}, in pairs")
    for each in comparisons:
        verdict = (_p(each.corrected), each.verdict)
        table.add_row(_name(each.second), "all", *_cells(each.differences), *verdict)
        if len(each.families) > 1:
            for family, its in each.families.items():
                table.add_row("", _name(family), *_cells(its), "", "")
    return table


def _cells(found: Differences) -> tuple[str, ...]:
    return (
        str(found.pass_at_1.items),
        f"{100 * found.first:.1f}, {100 * found.second:.1f}",
        _points(found.pass_at_1),
        _plain(found.reward),
        f"{found.won}, {found.lost}",
    )


def _by_seed(comparisons: Sequence[SeedComparison]) -> Table:
    heads = ("", "seeds", "difference by seed, points", "mean (95 %)", "p", "verdict")
    table = Table(*heads, title=f"Less {_name(comparisons[0].first)}, seed by seed")
    for each in comparisons:
        seeds = ", ".join(f"{100 * value:+.1f}" for value in each.by_seed)
        mean, p_value = _points(each.pass_at_1), _p(each.corrected)
        table.add_row(
            _name(each.second), str(len(each.by_seed)), seeds, mean, p_value, each.verdict
        )
    return table


def _sentences(results: Sequence[Result], comparisons: Compared) -> Iterable[str]:
    for result in results:
        if result.torn:
            yield f"{result.name}: the last line is incomplete and was left out"
    for each in comparisons:
        for reason, count in each.unpaired.items():
            yield f"{each.second}: not compared: {count} {reason}"
    for each in comparisons:
        yield sentence(each)


def sentence(each: Comparison | SeedComparison) -> str:
    """What a comparison comes to."""
    found = each.pass_at_1 if isinstance(each, SeedComparison) else each.differences.pass_at_1
    figures = f"{_points(found)} points of pass@1, p {_p(each.corrected, '= ')}"
    if each.verdict is not Verdict.CANNOT_TELL:
        return f"{each.second} is {each.verdict} than {each.first}: {figures}"
    units = "seeds" if isinstance(each, SeedComparison) else "items"
    told = f"{each.second} and {each.first}: {each.verdict} ({each.reason}): {figures}"
    return f"{told}; {_takes(each.power, units)}"


def _takes(power: Power, units: str) -> str:
    gap = f"{100 * power.gap:g} points"
    takes = f"{power.needed} {units} would show {gap} with 80 % power"
    takes += f", {power.more} more than these" if power.more else ", and there are as many"
    return f"{takes}; these would show {100 * power.shows:.1f} points"


def _percent(found: Estimate | None, items: int) -> str:
    if found is None:
        return ""
    fewer = f" of {found.items}" if found.items < items else ""
    return f"{100 * found.value:.1f}{_interval(found, 100, '.1f')}{fewer}"


def _points(found: Estimate) -> str:
    return f"{100 * found.value:+.1f}{_interval(found, 100, '+.1f')}"


def _plain(found: Estimate | None) -> str:
    return "" if found is None else f"{found.value:.4g}{_interval(found, 1, '.4g')}"


def _interval(found: Estimate, scale: float, form: str) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" ({scale * found.low:{form}} to {scale * found.high:{form}})"


def _p(p_value: float, equals: str = "") -> str:
    return "< 0.0001" if p_value < 1e-4 else f"{equals}{p_value:.4f}"


def _name(name: str) -> str:
    return escape(one_line(name, NAME_CHARS))
