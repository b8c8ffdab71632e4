"""Thoughts between <think> and </think>, before the answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_thoughts(text: str) -> tuple[str, str]:
    """The thoughts, and the rest. A prompt may have opened them already. Thoughts that are not
    closed are all there is."""
    opened = text.lstrip().startswith(OPEN)
    inner = text.lstrip().removeprefix(OPEN) if opened else text
    thoughts, closed, rest = inner.partition(CLOSE)
    if closed or opened:
        return thoughts.strip(), rest
    return "", text
