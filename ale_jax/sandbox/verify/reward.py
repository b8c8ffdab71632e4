"""Rewards out of the files that tests write: reward.json or reward.txt, as harbor's tasks do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ale_jax import files

JSON_FILE, TEXT_FILE = "reward.json", "reward.txt"
MAX_BYTES = 1 << 16
REWARD = "reward"
NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def parse_text(content: bytes) -> Mapping[str, float]:
    """One finite decimal number, as {"reward": number}. ValueError for anything else."""
    text = content.strip()
    if not text:
        raise ValueError("is empty")
    if not NUMBER.fullmatch(text):
        raise ValueError(f"holds {text!r:.80} where one number has to be")
    return {REWARD: _finite(float(text), TEXT_FILE)}


def parse_object(content: bytes) -> Mapping[str, float]:
    """An object of finite numbers, by name; at least one. ValueError for anything else."""
    if not content.strip():
        raise ValueError("is empty")
    try:
        found = files.parse_json(content)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"holds {found!r:.80} where an object of numbers has to be")
    return {name: _number(name, value) for name, value in found.items()}


def _number(name: str, value: object) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"has {value!r:.80} as {name!r:.80}, which is not a number")
    return _finite(float(value), name)


def _finite(value: float, name: str) -> float:
    if not abs(value) < float("inf"):
        raise ValueError(f"has {value} as {name!r:.80}, which is not finite")
    return value
