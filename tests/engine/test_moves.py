"""Conversations whose engine lends its devices: others go on with them, to the last bit."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import FLOAT32, SAME
from ale_jax.engine.engine import Engine
from ale_jax.engine.engines import Engines
from ale_jax.model.params import init_params
from ale_jax.model.replicas import SamplingCopy, engine_meshes
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.engine.playing import STOP, assert_same, play
from tests.engine.shapes import engine_shape
from tests.model.shapes import MIXED, RECURRENT

pytestmark = pytest.mark.heavy

COUNT, LENT = 3, 2  # engines, of two devices each
CONVERSATIONS = 14  # more than the slots of the one engine that stays


@pytest.mark.parametrize(
    ("policy", "ahead"), [(MIXED, False), (RECURRENT, True)], ids=["experts", "states"]
)
def test_conversations_of_lent_engines_go_on_elsewhere_with_the_same_tokens(policy, ahead):
    """They read, write, or wait for a slot or for their next request when it begins. Pages, states
    and the record of experts go with them."""
    mesh = make_mesh(MeshShape(data=2 * COUNT), jax.devices()[: 2 * COUNT])
    meshes = engine_meshes(mesh, 2)
    params = jax.device_put(init_params(jax.random.key(1), policy), param_shardings(policy, mesh))
    copies = SamplingCopy(policy, FLOAT32, mesh, SAME, meshes)(params)
    shape = engine_shape(prefill_tokens=(16,), dispatch_ahead=ahead)

    def open_engine(params, mesh):
        return Engine(policy, shape, STOP, params, mesh, record_experts=policy.is_moe)

    engines = Engines([open_engine(*each) for each in zip(copies, meshes, strict=True)])
    told, seconds = [], []
    engines.observe(lambda *_: None, lambda *each: told.append(each))
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        numbers = range(CONVERSATIONS)
        playing = [pool.submit(play, engines, n, 4, max_tokens=17) for n in numbers]
        for _ in range(4):
            engines.lend(LENT)
            lent = engines._engines[:LENT]
            assert not any(each._cache or each._open for each in lent), "devices are free"
            seconds.append(engines.publish(copies, 0))
        played = [each.result() for each in playing]
    assert engines.stats.preemptions > 0, "nobody had a slot that was lent"
    assert sorted(engines._router._open.values()) == [0] * COUNT
    assert [number for number, _, _ in told] == [*range(LENT)] * len(seconds)
    assert [end - start for _, start, end in told[::LENT]] == seconds and min(seconds) > 0.0
    assert engines.publish(copies, 1) == 0.0, "none was lent"
    engines.close()
    alone = open_engine(copies[0], meshes[0])
    for number, turns in enumerate(played):
        again = play(alone, number, 4, max_tokens=17)
        assert_same(turns, again)
        for (_, reply), (_, wanted) in zip(turns, again, strict=True):
            np.testing.assert_array_equal(reply.expert_TLK, wanted.expert_TLK)
    alone.close()
