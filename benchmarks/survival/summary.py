"""Computes the figures and their bars from what the parts have found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from benchmarks.survival.asynchronous import ALPHA, Account
from benchmarks.survival.chaos import Ended, interval
from benchmarks.survival.sigterm import Stop
from benchmarks.survival.sync import Comparison
from benchmarks.survival.trials import HEALED, HUNG, SAID, Trial

Figures = dict[str, float | int | bool | None]
# Keys that are always in the result; None if they were not measured.
REQUIRED = (
    *("faults_tried", "faults_healed_or_said", "hangs", "sync_kills", "sync_identical"),
    *("async_kills", "groups_lost", "groups_trained_twice", "episodes_kept_share"),
    *("sigterm_tried", "sigterm_saved", "restore_memory_ratio"),
)


@dataclasses.dataclass(frozen=True)
class Bar:
    """A figure must lie between two others, or numbers."""

    key: str
    what: str
    low: str | float
    high: str | float

    def limits(self, figures: Figures) -> tuple[float | None, float | None]:
        return tuple(figures.get(x) if isinstance(x, str) else x for x in (self.low, self.high))

    def holds(self, figures: Figures) -> bool | None:
        """None if it was not measured."""
        value, (low, high) = figures.get(self.key), self.limits(figures)
        return None if None in (value, low, high) else low <= value <= high


BARS = (
    Bar("faults_healed_or_said", "faults healed, or said in one line", "faults_tried", math.inf),
    Bar("hangs", "hangs", 0, 0),
    Bar("sigterm_saved", "SIGTERMs that ended in time, with all saved", "sigterm_tried", math.inf),
    Bar("sync_identical", "kills after which results are the same", "sync_kills", math.inf),
    Bar("groups_lost", "groups lost", 0, 0),
    Bar("groups_trained_twice", "groups trained twice", 0, 0),
    Bar("oldest_group", "highest age of a group", 0, math.ceil(ALPHA)),
    Bar("schedule_agrees", "the schedule names the groups that were trained", 1, 1),
    Bar("episodes_kept_share", "finished episodes kept", 0.95, 1),
    Bar("restore_memory_ratio", "peak memory of a restore, in states", 0, 1.05),
    Bar("chaos_ended", "the run under chaos ended", 1, 1),
    Bar("chaos_bugs", "its ends by a bug", 0, 0),
    Bar("chaos_throughput_ratio", "its throughput over that of calm runs", 0.8, math.inf),
    Bar("chaos_success", "its success", "chaos_success_low", "chaos_success_high"),
)


def of_faults(trials: Sequence[Trial]) -> Figures:
    return {
        "faults_tried": len(trials),
        "faults_healed_or_said": sum(each.outcome in (HEALED, SAID) for each in trials),
        "hangs": sum(each.outcome == HUNG for each in trials),
    }


def of_stops(stops: Sequence[Stop]) -> Figures:
    return {
        "sigterm_tried": len(stops),
        "sigterm_saved": sum(each.right for each in stops),
        "sigterm_s_max": max(each.seconds for each in stops),
        "hangs": sum(each.hung for each in stops),
    }


def of_comparisons(compared: Sequence[Comparison]) -> Figures:
    return {
        "sync_kills": sum(each.kills for each in compared),
        "sync_identical": sum(each.kills for each in compared if each.identical),
        "hangs": sum(each.hung for each in compared),
    }


def of_account(account: Account) -> Figures:
    return {
        "async_kills": account.kills,
        "async_steps": account.steps,
        "groups_lost": account.groups_lost,
        "groups_trained_twice": account.groups_trained_twice,
        "oldest_group": account.oldest,
        "episodes_to_keep": account.kept + account.replayed,
        "episodes_kept_share": account.kept_share,
        "schedule_agrees": account.schedule_agrees,
    }


def of_memory(ratio: float) -> Figures:
    return {"restore_memory_ratio": ratio}


def of_chaos(found: tuple[Sequence[Ended], Ended]) -> Figures:
    calm, chaos = found
    low, high = interval(calm)
    success, slowest = chaos.success, min(each.rate for each in calm)
    fastest = max(each.rate for each in calm)
    mean = sum(each.rate for each in calm) / len(calm)
    return {
        "chaos_ended": chaos.ended,
        "chaos_kills": chaos.kills,
        "chaos_hung_sandboxes": chaos.hung_sandboxes,
        "chaos_restarts": chaos.restarts,
        "chaos_bugs": chaos.bugs,
        "chaos_throughput_ratio": round(chaos.rate / mean, 3),
        "chaos_calm_spread": round(slowest / fastest, 3),
        "chaos_success": round(success.successes / max(success.tasks, 1), 4),
        "chaos_success_low": round(low, 4),
        "chaos_success_high": round(high, 4),
        "hangs": sum(not each.ended for each in (*calm, chaos)),
    }


def together(parts: Sequence[Figures]) -> Figures:
    """All figures; the hangs of all parts are added."""
    total: Figures = dict.fromkeys(REQUIRED)
    for figures in parts:
        hangs = (total["hangs"] or 0) + figures["hangs"] if "hangs" in figures else total["hangs"]
        total |= figures | {"hangs": hangs}
    return total
