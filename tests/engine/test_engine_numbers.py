"""What the sampler says of its tokens, against the learner, in every form that the engine has."""

import jax
import numpy as np
import pytest

from ale_jax.config.model import Compute
from ale_jax.engine.engine import Engine
from ale_jax.model.params import init_params
from ale_jax.model.sampling_weights import sampling_weights
from tests.engine.playing import STOP, mean_gap, play
from tests.engine.shapes import engine_shape
from tests.model.shapes import DENSE, MOE

pytestmark = pytest.mark.heavy


def _play_six(shape, params, **changes):
    engine = Engine(shape, engine_shape(prefill_tokens=(16,), **changes), STOP, params)
    played = [play(engine, number, 2) for number in range(6)]
    engine.close()
    return played


# Mean absolute differences of log-probability. In float32 test_engine.py holds each token to 1e-5.
@pytest.mark.parametrize(
    ("shape", "dtype", "int8_cache", "bar"),
    [
        (MOE, "bfloat16", False, 1e-4),
        (DENSE, "bfloat16", False, 1e-4),
        (DENSE, "float32", True, 1e-2),
    ],
)
def test_sampler_and_learner_agree(shape, dtype, int8_cache, bar):
    params, compute = init_params(jax.random.key(1), shape), Compute(dtype)
    played = _play_six(shape, sampling_weights(params, shape, compute), int8_cache=int8_cache)
    assert sum(len(reply.ids) for turns in played for _, reply in turns) > 60
    gap = np.mean([mean_gap((shape, params), turns, compute) for turns in played])
    assert gap <= bar
    assert gap > 0 or not int8_cache  # else nothing was rounded
