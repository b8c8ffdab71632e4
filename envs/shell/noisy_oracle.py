"""An oracle that errs on the way: something for the masks of supervised learning to leave out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ale_jax.agent.tools import ToolCall, bash

READERS = ("cat", "grep", "ls", "sh")  # commands that change nothing when they are given twice


def noisy(calls: Sequence[ToolCall], seed: int) -> tuple[ToolCall, ...]:
    """The same calls, one of the reading ones preceded by one that fails, for its last word lacks
    a letter, and one followed by itself. Which ones: by the seed."""
    rng = np.random.default_rng([seed, len(calls)])
    readers = [i for i, call in enumerate(calls) if _reads(call)]
    wrong, twice = readers[rng.integers(len(readers))], readers[rng.integers(len(readers))]
    played = []
    for i, call in enumerate(calls):
        if i == wrong:
            played.append(bash(call.arguments["command"][:-1]))
        played.extend([call, call] if i == twice else [call])
    return tuple(played)


def _reads(call: ToolCall) -> bool:
    return call.name == "bash" and call.arguments["command"].split()[0] in READERS
