"""The benchmark of drafts, with few conversations."""

import jax
import pytest

from benchmarks.drafts import Recorded, compare

pytestmark = pytest.mark.heavy


def test_recorded_conversations_are_played_with_and_without_drafts():
    recorded = Recorded.read()
    assert len(recorded.conversations) == 48
    found = compare(recorded, at_once=jax.device_count(), drafted=3, rounds=1)
    assert 0 < found["acceptance"] < 1 < found["tokens_per_pass"] < 4
    assert min(found.values()) > 0
