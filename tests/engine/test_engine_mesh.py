"""The engine on a mesh: each device has its own shard of the conversations, and nothing changes."""

import dataclasses
import math
import re
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import FLOAT32
from ale_jax.engine import engine as engine_module
from ale_jax.engine.engine import Engine
from ale_jax.model.generate import prefill_and_decode
from ale_jax.model.params import init_params
from ale_jax.model.sampling_weights import sampling_weights
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.engine.playing import PATIENCE, PLAIN, STOP, assert_same, key, play, prompt
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE, changed

POLICY = changed(MOE, num_layers=1)
PARAMS = init_params(jax.random.key(1), POLICY)
SIZES = engine_shape(max_sequences=8, prefill_tokens=(16,))
MESHES = [MeshShape(data=4, tensor=2), MeshShape(data=1, fsdp=2, expert=2, tensor=2)]  # 4 shards


class CompiledOnce:
    """The sampling program, which refuses arguments that lie elsewhere than the first ones did."""

    def __init__(self):
        self.program = None

    def __call__(self, *arrays, **constants):
        if self.program is None:
            self.program = prefill_and_decode.lower(*arrays, **constants).compile()
        return self.program(*arrays)


def _play_all(engine):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: play(engine, n, 2), range(8)))


@pytest.fixture(scope="module")
def on_one_device():
    engine = Engine(POLICY, SIZES, STOP, PARAMS, record_experts=True)
    played = _play_all(engine)
    engine.close()
    return played


@pytest.fixture(scope="module", params=MESHES, ids=str)
def on_mesh(request, on_one_device):
    """An engine on a mesh, and its program."""
    mesh, compiled = make_mesh(request.param), CompiledOnce()
    learned = jax.device_put(PARAMS, param_shardings(POLICY, mesh))
    weights = sampling_weights(learned, POLICY, FLOAT32, mesh)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "prefill_and_decode", compiled)
        sizes = dataclasses.replace(SIZES, dispatch_ahead=True)
        engine = Engine(POLICY, sizes, STOP, weights, mesh=mesh, record_experts=True)
        yield engine, compiled
        engine.close()


@pytest.mark.heavy
def test_tokens_and_experts_are_those_of_one_device_whoever_else_is_there(on_mesh, on_one_device):
    engine, _ = on_mesh
    together = _play_all(engine)
    for number in (0, 5):
        assert_same(play(engine, number, 2), together[number])
    for turns, expected_turns in zip(together, on_one_device, strict=True):
        for (_, reply), (_, expected) in zip(turns, expected_turns, strict=True):
            np.testing.assert_array_equal(reply.ids, expected.ids)
            np.testing.assert_array_equal(reply.expert_TLK, expected.expert_TLK)
            np.testing.assert_allclose(reply.logp_plain, expected.logp_plain, atol=1e-5)


@pytest.mark.heavy
def test_a_group_has_its_prompt_in_one_share(on_mesh):
    """Of two slots each: the third member has to read the prompt again, the fourth does not."""
    engine, _ = on_mesh
    first, before, shared = prompt(1, 45), engine.stats.shared_tokens, []
    members = [engine.open() for _ in range(4)]
    for number, member in enumerate(members):
        engine.reply(member, first, 5, PLAIN, key(number)).result(PATIENCE)
        shared.append(engine.stats.shared_tokens - before)
    for member in members:
        engine.end(member)
    assert shared == [0, 40, 40, 80]


def test_each_device_has_its_share_of_the_cache(on_mesh):
    """From the beginning, and still when it was used."""
    used, _ = on_mesh
    play(used, 0, 1)
    new = Engine(POLICY, SIZES, STOP, used._weights[0], mesh=used._mesh)
    new.close()
    for pages in jax.tree.leaves([used._cache, new._cache]):
        assert [shard.data.nbytes for shard in pages.addressable_shards] == [pages.nbytes // 8] * 8


@pytest.mark.heavy
def test_no_keys_or_values_travel(on_mesh):
    """What does is smaller than those of one conversation."""
    engine, compiled = on_mesh
    play(engine, 0, 1)
    of_keys = SIZES.max_sequence_length * POLICY.layers[0].mixer.head_width
    program = compiled.program.as_text()
    collective = r"= \w+\[([\d,]*)\]\S* (?:all-|reduce-scatter|collective-)"
    sizes = [
        math.prod(map(int, dims.split(","))) for dims in re.findall(collective, program) if dims
    ]
    assert len(sizes) > 10
    assert max(sizes) < of_keys
