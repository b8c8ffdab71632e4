"""The figures as a table for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

# Keys that are always in the result; None if they were not measured.
REQUIRED = (
    *("clients_passed", "clients_tried", "overhead_ms_p50_1", "overhead_ms_p50_64"),
    *("overhead_ms_p99_64", "resent_ttft_ratio", "fuzz_requests", "fuzz_5xx", "drift_tokens"),
    *("branches_lost_tokens", "constrained_parsed_share", "slow_stream_lost"),
    *("announced_retries_lost", "rewriting_agents_warned"),
)


def show(figures: dict[str, Any]) -> None:
    """All figures that are a number or a text; the others are in the JSON only."""
    table = Table("figure", "value", title="Gateway")
    for name, value in figures.items():
        if isinstance(value, int | float | str):
            table.add_row(name, str(value))
        elif value is None:
            table.add_row(name, "not measured")
    Console().print(table)
