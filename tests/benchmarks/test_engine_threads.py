"""The engine beside busy threads, in a small form that CPUs play."""

import dataclasses

import numpy as np
import pytest

from ale_jax.rollout.engine import Engine
from benchmarks.engine_threads import SMOLLM2_135M, measure

TINY = dataclasses.replace(SMOLLM2_135M, vocab_size=64, num_layers=1, width=64, mlp_width=64)


@pytest.fixture
def told(monkeypatch):
    """What each dispatch of the engine wrote: the numbers of conversations and tokens."""
    told, take_over = [], Engine._take_over

    def note(engine, dispatch, burst, copied):
        take_over(engine, dispatch, burst, copied)
        told.append((len(dispatch.writing), int((np.asarray(burst.token_nS) >= 0).sum())))

    monkeypatch.setattr(Engine, "_take_over", note)
    return told


def test_all_conversations_are_played_together_and_their_tokens_are_counted(told):
    found = measure(TINY, conversations=3, seconds=1.0)
    assert max(conversations for conversations, _ in told) == 3
    per_dispatch = found["tokens_per_second"] * found["dispatch_ms"] / 1e3
    assert 0 < per_dispatch <= max(tokens for _, tokens in told) == 3 * 8
