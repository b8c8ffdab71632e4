"""Which chunks of a transcript are worth imitating (Eq 1 of arXiv 2512.24873): m_err and m_task.

A chunk that is left out earns no loss and stays in the context of those after it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"[^\s\"'{}:,<>]+")


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What was written in one turn, what came back, and whether the runtime recorded an error: no
    valid call, an exit code other than 0, or no end within the time limit."""

    action: str
    observation: str
    failed: bool


def error_mask(chunks: Sequence[Chunk]) -> np.ndarray:
    """m_err [K], bool: False where the turn's call met an error."""
    return np.array([not chunk.failed for chunk in chunks], bool)


def relevance_mask(chunks: Sequence[Chunk]) -> np.ndarray:
    """m_task [K], bool: False for a turn that nearly repeats an earlier one and was answered alike.

    Nearly: the same words in the same order, whatever the white space, the quotes and the options
    (words that begin with "-"). The answer must be the same to the character: a command that is
    tried again and now says something else did something.
    """
    seen: set[tuple[tuple[str, ...], str]] = set()
    mask = []
    for chunk in chunks:
        words = tuple(w for w in _WORD.findall(chunk.action) if not w.startswith("-"))
        mask.append((words, chunk.observation) not in seen)
        seen.add((words, chunk.observation))
    return np.array(mask, bool)
