"""Checks shared by the hyperparameter records."""

from __future__ import annotations

import math
from typing import Any


def require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} {value!r} is unknown: choose one of {', '.join(allowed)}")


def require_range(name: str, value: float, low: float, high: float, remedy: str) -> None:
    """ValueError unless `value` is finite and in [low, high]. nan fails, because every comparison
    with it is false."""
    if not (low <= value <= high and math.isfinite(value)):
        raise ValueError(f"{name} {value} must be in [{low}, {high}]: {remedy}")


def require_at_least(low: int, record: Any, *names: str) -> None:
    """ValueError unless each of the record's fields `names` is `low` or more."""
    for name in names:
        if getattr(record, name) < low:
            raise ValueError(f"{name} {getattr(record, name)} must be at least {low}")
