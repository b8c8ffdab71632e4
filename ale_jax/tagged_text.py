"""Texts with parts in tags: thoughts before an answer, and calls within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Tags = tuple[str, str]  # before a part of a text, and behind it
THINK, THINK_END = THOUGHTS = "<think>", "</think>"
T = TypeVar("T")


def split_thoughts(text: str, tags: Tags = THOUGHTS) -> tuple[str, str]:
    """Returns the thoughts, between two tags before the answer, and the rest. Thoughts that are not
    closed are all there is."""
    opening, closing = tags
    if not text.lstrip().startswith(opening):
        return "", text
    thoughts, _, rest = text.lstrip().removeprefix(opening).partition(closing)
    return thoughts.strip(), rest


def read_tagged(
    text: str, opening: str, read: Callable[[str], tuple[Sequence[T], str]]
) -> tuple[str, list[T], int]:
    """Returns content, calls and the number of malformed ones, if calls begin with a tag. A call
    that cannot be read stays in the content. read: returns the calls that are behind a tag, and
    what follows them; ValueError if there are none."""
    content, malformed = "", 0
    calls: list[T] = []
    while opening in text:
        before, _, after = text.partition(opening)
        content += before
        try:
            found, text = read(after)
            calls += found
        except ValueError:
            content, text, malformed = content + opening, after, malformed + 1
    return (content + text).strip(), calls, malformed
