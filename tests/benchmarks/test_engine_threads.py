"""The engine beside busy threads, in a small form that CPUs play."""

import contextlib
import sys

import jax
import pytest

from ale_jax.engine.engine import Engine
from ale_jax.model.params import init_params
from ale_jax.system.interpreter import switching
from benchmarks import engine_threads
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE

pytestmark = pytest.mark.slow

DISPATCHES, CONVERSATIONS = 30, 3


def test_tokens_and_dispatches_are_counted_while_conversations_are_played():
    shape = engine_shape(max_sequence_length=1024, prefill_tokens=(128,), prefill_budget=512)
    engine = Engine(MOE, shape, engine_threads.NO_STOP, init_params(jax.random.key(0), MOE))
    with contextlib.closing(engine):
        found = engine_threads.measure(engine, CONVERSATIONS, DISPATCHES)
        assert not engine._open  # all were ended
    seconds = DISPATCHES * found["dispatch_ms"] / 1e3
    # When a dispatch is counted, its tokens may not be yet.
    most = (DISPATCHES + 1) * CONVERSATIONS * shape.decode_steps
    assert most / CONVERSATIONS < found["tokens_per_second"] * seconds <= most


def test_the_switch_interval_is_put_back():
    before = sys.getswitchinterval()
    with switching(before / 8), engine_threads._python_code(0.5):
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
