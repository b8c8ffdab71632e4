"""The benchmark of preemption: what it plays is the same whatever room there is, and it counts."""

import jax
import pytest

from ale_jax.engine.engine import Engine
from ale_jax.model.params import init_params
from benchmarks import preemption
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE

pytestmark = pytest.mark.slow


@pytest.fixture
def play(monkeypatch):
    monkeypatch.setattr(preemption, "PAUSE_S", 0.0)
    params = init_params(jax.random.key(0), MOE)

    def play(pages):
        shape = engine_shape(max_sequence_length=384, prefill_tokens=(32,), pages=pages)
        engine = Engine(MOE, shape, preemption.NO_STOP, params)
        try:
            return preemption.play_all(engine, 4, 5)
        finally:
            engine.close()

    return play


def test_replies_are_the_same_with_few_pages_and_preemptions_are_counted(play):
    roomy, crowded = play(4 * 48), play(60)
    assert roomy.digest == crowded.digest
    assert roomy.preemptions == 0 < crowded.preemptions
    assert 0 < crowded.conversations <= 5 and crowded.tokens_per_second > 0
    figures = preemption.summary([roomy, crowded, crowded])
    assert figures["preemptions"] == crowded.preemptions
    assert figures["lowest"] <= figures["tokens_per_second"] <= figures["highest"]
