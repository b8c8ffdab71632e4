"""An oracle that makes errors, as a test case for the masks of supervised learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ale_jax.agent.tools import ToolCall, bash

READERS = ("cat", "grep", "ls", "sh")  # commands that can be repeated without a change


def noisy(calls: Sequence[ToolCall], seed: int) -> tuple[ToolCall, ...]:
    """The same calls with two insertions, at reading calls that are chosen by the seed: a failing
    call, whose last word lacks a letter, before one of them, and a repetition after one of them."""
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
