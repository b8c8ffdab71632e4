"""What of a run was cut short or dropped, for its report."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from ale_jax.monitor.events import DROPPED_FIELDS, dropped_groups
from ale_jax.monitor.run_files import RunFiles

TRUNCATED = "truncated"  # the metric of all limits, and the beginning of those of each
MAX_DROPPED = 50


def truncations(run: RunFiles) -> dict[str, float]:
    """Returns by limit, the most frequent first, the share of the episodes trained on that it has
    ended: the mean over steps, in percent. Limits that ended none are left out."""
    totals: collections.Counter[str] = collections.Counter()
    steps = [line for line in run.phase("rl") if line.get(TRUNCATED) is not None]
    for line in steps:
        limits = (name for name in line if name.startswith(f"{TRUNCATED}/"))
        totals.update({name.partition("/")[2]: line[name] or 0.0 for name in limits})
    return {limit: 100 * total / len(steps) for limit, total in totals.most_common()}


def stale_groups(run: RunFiles) -> dict[str, tuple[int, float]]:
    """Returns by family, the most often dropped first, how many of its groups were dropped because
    they were too old, and their share in percent of those and the ones trained on."""
    counts: dict[str, collections.Counter[str]] = {
        kind: collections.Counter() for kind in ("trained_groups", "stale_groups")
    }
    for line in run.phase("rl"):
        for name, value in line.items():
            kind, _, family = name.partition("/")
            if kind in counts and value:
                counts[kind][family] += value
    trained, stale = counts["trained_groups"], counts["stale_groups"]
    shares = {family: 100 * n / (n + trained[family]) for family, n in stale.items()}
    return {f: (stale[f], shares[f]) for f in sorted(shares, key=lambda f: -shares[f])}


def dropped_rows(run: RunFiles) -> list[Mapping[str, Any]]:
    """Returns the last MAX_DROPPED groups that were dropped: what DROPPED_FIELDS says of each.
    Without those of lost steps, which a resumed run plays again."""
    dropped = [event.fields for event in dropped_groups(run.events)]
    return [
        {name: fields.get(name, "") for name in DROPPED_FIELDS} for fields in dropped[-MAX_DROPPED:]
    ]
