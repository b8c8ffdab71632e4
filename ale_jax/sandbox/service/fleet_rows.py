"""The fleet as the page shows it: short, since it is asked for every second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ale_jax.sandbox.pool.api import Status
from ale_jax.sandbox.pool.states import WITH_CAUSE

ENDED_SHOWN = 200
MAX_LABELS, MAX_CHARS = 8, 120
UNKNOWN = dict.fromkeys(("processes", "disk_bytes", "disk_limit_bytes", "memory_bytes"))


def sandbox_rows(statuses: Sequence[Status]) -> dict[str, Any]:
    """rows: all that live, and the ENDED_SHOWN that ended last. states: how many there are of each,
    those that are not shown too."""
    ended = [status for status in statuses if status.cause is not None]
    ended.sort(key=_since, reverse=True)
    living = [status for status in statuses if status.cause is None]
    states = Counter(str(status.state) for status in statuses)
    return {"states": states, "rows": [_row(each) for each in (*living, *ended[:ENDED_SHOWN])]}


def _row(status: Status) -> dict[str, Any]:
    stats, spec = status.stats, status.spec
    usage = UNKNOWN if stats is None else {name: getattr(stats, name) for name in UNKNOWN}
    labels = list(status.labels.items())[:MAX_LABELS]
    return {
        "id": status.id,
        "node": status.node,
        "state": status.state,
        "cause": status.cause,
        "why": _why(status),
        "generation": status.generation,
        "busy": status.busy,
        "since": status.started_at if status.cause is None else _since(status),
        "silent_seconds": status.silent_seconds,
        "image": spec.image,
        "labels": {name[:MAX_CHARS]: text[:MAX_CHARS] for name, text in labels},
        "cpu_percent": status.cpu_percent,
        "memory_limit_bytes": spec.memory_mb << 20,
        "processes_limit": spec.pids,
        **usage,
    }


def _since(status: Status) -> float:
    return status.history[-1].at if status.history else status.started_at


def _why(status: Status) -> str:
    """Why it ended; of one that lives, why the generation before it did."""
    for change in reversed(status.history):
        if change.state in WITH_CAUSE and change.detail:
            return change.detail[: 2 * MAX_CHARS]
    return ""
