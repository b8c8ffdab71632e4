"""Conversations that use different adapters at once: each gets what it gets from an engine that has
its adapter alone."""

import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.config.model import ALL_LINEAR, LoraShape
from ale_jax.engine.engine import Engine
from ale_jax.engine.engines import Engines
from ale_jax.model.lora import adapter_table, chosen_maps
from ale_jax.model.params import init_params, init_table
from ale_jax.model.served_adapters import OF_COLUMN, of_column, placed
from ale_jax.model.sharding import param_shardings
from tests.engine.playing import PATIENCE, STOP, key, prompt
from tests.engine.shapes import engine_shape
from tests.model.meshes import mesh_of
from tests.model.shapes import LATENT, MIXED, RECURRENT

pytestmark = pytest.mark.heavy

GREEDY = Sampling(temperature=0.0)
PROMPT = prompt(1, 30)  # three pages of 8 are full before the last id, which is not read
SHAPES = {"attention and experts": MIXED, "latent": LATENT, "recurrent": RECURRENT}
NUMBERS = range(3)
CLOSE = 2e-5


def drawn_adapter(shape, rank, targets, seed):
    """An adapter that changes much."""
    names = chosen_maps(shape, LoraShape(rank, 1.0, targets=targets).targets)
    zeros = init_table(jax.random.key(0), adapter_table(shape, names, rank))
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda x: draw.normal(0, 0.3, x.shape).astype(np.float32), zeros)


def adapters_of(shape):
    """Two adapters that differ in rank and in the maps that they change."""
    return [drawn_adapter(shape, 3, (ALL_LINEAR,), 1), drawn_adapter(shape, 2, ("o", "down"), 2)]


def engine_with(shape, adapters, mesh=None, **sizes):
    mesh = mesh or mesh_of()
    params = init_params(jax.random.key(1), shape)
    params = jax.device_put(params, param_shardings(shape, mesh))
    if adapters:
        beside = {"adapters": placed(adapters, shape, mesh)}
        params |= beside | ({OF_COLUMN: of_column(adapters)} if len(adapters) > 1 else {})
    sizes = {"prefill_tokens": (16,), "share_replies": True} | sizes
    return Engine(shape, engine_shape(**sizes), STOP, params, mesh=mesh)


def talk(engine, number, adapter=0):
    """Two turns; conversations of all adapters begin alike."""
    conversation, said = engine.open(adapter), []
    for ids in (PROMPT, prompt(number, 9)):
        reply = engine.reply(conversation, ids, 11, GREEDY, key(number)).result(PATIENCE)
        said.append(reply)
    engine.end(conversation)
    return said


def assert_same(got, expected):
    for reply, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(reply.ids, wanted.ids)
        np.testing.assert_allclose(reply.logp_plain, wanted.logp_plain, atol=CLOSE)


@functools.cache
def alone(shape):
    """What each conversation gets with no adapter, with the first alone, and with the second."""
    said = []
    for adapters in ([], *([each] for each in adapters_of(shape))):
        with contextlib.closing(engine_with(shape, adapters)) as engine:
            said.append([talk(engine, number) for number in NUMBERS])
    return said


@pytest.mark.parametrize(
    ("shape", "pages"),
    # With room for all, pages are shared. With less, pages or states are swapped.
    [(MIXED, 48), (MIXED, 14), (LATENT, 48), (RECURRENT, 14)],
    ids=["experts", "experts, preempted", "latent", "recurrent, preempted"],
)
def test_each_conversation_gets_what_its_adapter_alone_would_say(shape, pages):
    expected = alone(shape)
    assert not np.array_equal(expected[0][0][0].ids, expected[1][0][0].ids)
    assert not np.array_equal(expected[1][0][0].ids, expected[2][0][0].ids)
    engine = engine_with(shape, adapters_of(shape), pages=pages)
    with contextlib.closing(engine), ThreadPoolExecutor(9) as pool:
        asked = {
            (adapter, number): pool.submit(talk, engine, number, adapter)
            for number in NUMBERS
            for adapter in range(3)
        }
        for (adapter, number), each in asked.items():
            assert_same(each.result(), expected[adapter][number])
    if pages < 48:
        assert engine.stats.preemptions > 2
    elif not shape.is_recurrent:
        assert engine.stats.shared_tokens >= 3 * 2 * 24, "those of one adapter share its pages"


def test_pages_belong_to_one_adapter():
    engine = engine_with(MIXED, adapters_of(MIXED))
    with contextlib.closing(Engines([engine])) as engines:
        shared = []
        for adapter in (1, 2, 0, 2):
            before = engine.stats.shared_tokens
            talk(engines, 5, adapter)
            shared.append(engine.stats.shared_tokens - before)
    assert shared == [0, 0, 0, 24]


def test_on_several_devices_each_slot_has_its_own():
    mesh = mesh_of(data=2, expert=2, tensor=2)
    engine = engine_with(MIXED, adapters_of(MIXED), mesh, max_sequences=8, pages=96)
    with contextlib.closing(engine), ThreadPoolExecutor(6) as pool:
        asked = {n: pool.submit(talk, engine, n // 3, n % 3) for n in range(6)}
        for n, each in asked.items():
            assert_same(each.result(), alone(MIXED)[n % 3][n // 3])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_overflows_under_one_adapter_is_not_met_by_others(shape):
    """Those who come after it into its slot and its pages, and those beside it."""
    loud = jax.tree.map(lambda x: np.full_like(x, 1e30), adapters_of(shape)[0])
    engine = engine_with(shape, [loud, adapters_of(shape)[1]], pages=14)
    with contextlib.closing(engine), ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            beside = pool.submit(talk, engine, 0, 1)
            assert_same(talk(engine, 1, 2), alone(shape)[2][1])
            assert np.isnan(beside.result()[0].logp_plain).any()
            assert_same(talk(engine, 2), alone(shape)[0][2])
