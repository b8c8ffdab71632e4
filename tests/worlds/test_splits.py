"""Training and evaluation never meet: over families, epochs and resumed runs."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.worlds.splits import interrupted_evaluation, made_run

SEED = st.integers(0, 2**31)


@settings(deadline=None, max_examples=40)
@given(SEED)
def test_no_task_is_both_trained_on_and_evaluated_in_any_life_of_a_run(seed):
    with tempfile.TemporaryDirectory() as folder:
        played = made_run(Path(folder), seed)
    assert played.trained and played.evaluated and played.lives > 1
    assert played.leaks == 0


@settings(deadline=None, max_examples=20)
@given(SEED)
def test_an_evaluation_of_several_lives_plays_every_item_and_sample_once(seed):
    with tempfile.TemporaryDirectory() as folder:
        counted = interrupted_evaluation(Path(folder), seed)
    assert len(counted) > 30 and set(counted.values()) == {1}
