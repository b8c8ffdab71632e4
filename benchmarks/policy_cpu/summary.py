"""Computes medians and ratios to the best peer from the rows of all rounds, and prints a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.policy_cpu.contenders import OURS, Row

# Our name of each part, the peers' name of it, and their name of its tokens per second.
PARTS = {"generation": ("gen", "decode_tok_s"), "training": ("train", "tok_s")}

Part = dict[str, Any]


def compare(rows: Mapping[str, list[Row]], bars: Mapping[str, float]) -> dict[str, Part]:
    """The figures of all contenders for generation and training, and ours relative to the best
    peer's.

    rows: of each contender, one per round. best_peer, ratio and met are None without peers. ratio
    is of the medians over rounds; ratio_by_round has that of each round.
    """
    return {part: _compare(part, rows, bar) for part, bar in bars.items()}


def _compare(part: str, rows: Mapping[str, list[Row]], bar: float) -> Part:
    figures = {name: _figures(part, found) for name, found in rows.items() if found}
    peers = {name: each for name, each in figures.items() if name != OURS}
    comparison = {"figures": figures, "bar": bar, "best_peer": None, "ratio": None, "met": None}
    if not peers:
        return comparison
    best = max(peers, key=lambda name: peers[name]["tok_s"])
    ratio = figures[OURS]["tok_s"] / peers[best]["tok_s"]
    rounds = zip(*(each["tok_s_by_round"] for each in (figures[OURS], *peers.values())))
    return comparison | {
        "best_peer": best,
        "ratio": round(ratio, 3),
        "ratio_by_round": [round(mine / max(theirs), 3) for mine, *theirs in rounds],
        "met": ratio >= bar,
    }


def _figures(part: str, rows: list[Row]) -> Part:
    kind, rate = PARTS[part]
    rates = [row[kind][rate] for row in rows]
    cpu = [row[kind]["cpu_s"] for row in rows]
    return {
        "tok_s": round(statistics.median(rates), 1),
        "cpu_s": round(statistics.median(cpu), 5),
        "tok_s_by_round": [round(each, 1) for each in rates],
        "cpu_s_by_round": [round(each, 5) for each in cpu],
        "first_s_by_round": [round(row[kind]["first_s"], 2) for row in rows],
    }


def table(name: str, comparison: Mapping[str, Part]) -> Iterator[str]:
    """The lines of the table. CPU s: of all threads, per call."""
    yield f"{name:18}" + "".join(f"{part + ' tok/s':>18}{'CPU s':>9}" for part in comparison)
    parts = list(comparison.values())
    for contender in parts[0]["figures"]:
        cells = (part["figures"][contender] for part in parts)
        yield f"  {contender:16}" + "".join(f"{c['tok_s']:18,.0f}{c['cpu_s']:9.3f}" for c in cells)
    for part, each in comparison.items():
        if each["best_peer"]:
            verdict = "met" if each["met"] else "MISSED"
            yield (
                f"  {part}: {each['ratio']:.2f} x {each['best_peer']}, the best peer; "
                f"bar {each['bar']}: {verdict} (by round: {each['ratio_by_round']})"
            )
