"""What the sampler says of its tokens, against the learner, in every form that the engine has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.model.params import init_params
from ale_jax.model.sharding import MeshShape, make_mesh, param_shardings
from ale_jax.rollout.engine import Engine
from tests.model.shapes import DENSE, MOE
from tests.rollout.playing import STOP, mean_gap, play
from tests.rollout.shapes import engine_shape


def _play_six(shape, params, mesh=None, **changes):
    engine = Engine(shape, engine_shape(**changes), STOP, params, mesh=mesh)
    played = [play(engine, number, 2) for number in range(6)]
    engine.close()
    return played


def _mean_gap(policy, played):
    return np.mean([mean_gap(policy, turns) for turns in played])


@pytest.mark.parametrize("shape", [MOE, DENSE], ids=["moe", "dense"])
@pytest.mark.parametrize(
    ("dtype", "int8_cache", "bar"),
    [("float32", False, 1e-5), ("bfloat16", False, 1e-3), ("float32", True, 1e-2)],
)
def test_sampler_and_learner_agree(shape, dtype, int8_cache, bar):
    params = init_params(jax.random.key(1), shape, jnp.dtype(dtype))
    played = _play_six(shape, params, int8_cache=int8_cache)
    assert sum(len(reply.ids) for turns in played for _, reply in turns) > 60
    assert _mean_gap((shape, params), played) <= bar


@pytest.mark.parametrize("axes", [{"tensor": 2, "expert": 4}, {"tensor": 2, "data": 2, "fsdp": 2}])
def test_on_a_mesh_the_tokens_are_the_same(axes):
    params = init_params(jax.random.key(1), MOE)
    mesh = make_mesh(MeshShape(**axes))
    placed = jax.device_put(params, param_shardings(MOE, mesh))
    on_mesh = _play_six(MOE, placed, mesh, prefill_rows=4)
    alone = _play_six(MOE, params, prefill_rows=4)
    for turns, expected_turns in zip(on_mesh, alone, strict=True):
        for (_, reply), (_, expected) in zip(turns, expected_turns, strict=True):
            np.testing.assert_array_equal(reply.ids, expected.ids)
            np.testing.assert_allclose(reply.logp_old, expected.logp_old, atol=1e-5)
