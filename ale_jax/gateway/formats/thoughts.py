"""Thoughts between <think> and </think>, before the answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_thoughts(text: str) -> tuple[str, str]:
    """The thoughts, and the rest. Thoughts that are not closed are all there is."""
    if not text.lstrip().startswith(OPEN):
        return "", text
    thoughts, _, rest = text.lstrip().removeprefix(OPEN).partition(CLOSE)
    return thoughts.strip(), rest
