"""Conversations of a policy with latent attention: what is kept of them is small, and nothing else
is changed by it."""

import dataclasses
import math
import re
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import FLOAT32, Compute, LoraShape
from ale_jax.engine.engine import Engine
from ale_jax.model import cache
from ale_jax.model.generate import prefill_and_decode
from ale_jax.model.lora import new_adapters, trained, with_trained
from ale_jax.model.memory import cache_shardings, empty_cache
from ale_jax.model.params import init_params
from ale_jax.model.sampling_weights import sampling_weights
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.engine.playing import (
    STOP,
    assert_same,
    learner_scores,
    mean_gap,
    play,
    prompt,
    where_written,
)
from tests.engine.shapes import engine_shape
from tests.model.shapes import LATENT, with_mixer
from tests.model.test_generate import PROGRAM, RESTING, _chunks

PARAMS = init_params(jax.random.key(1), LATENT)
SIZES = engine_shape(max_sequences=8, prefill_tokens=(16,))
PROMPT = prompt(1, 45)  # five pages of 8 are full before the last id, which is not read


def _play(shape, params=PARAMS, mesh=None):
    """Eight conversations at once, of which four have a prompt in common."""
    engine = Engine(LATENT, shape, STOP, params, mesh=mesh)
    with ThreadPoolExecutor(8) as pool:
        played = list(
            pool.map(lambda n: play(engine, n, 2, first=PROMPT if n < 4 else None), range(8))
        )
    engine.close()
    return played, engine


@pytest.fixture(scope="module")
def roomy():
    return _play(SIZES)


@pytest.mark.heavy
def test_the_learner_says_the_same_of_every_token(roomy):
    played, engine = roomy
    assert engine.stats.shared_tokens >= 3 * 40 and engine.stats.preemptions == 0
    for turns in played:
        written = where_written(turns)
        logp = np.concatenate([reply.logp_plain for _, reply in turns])
        found, _ = learner_scores((LATENT, PARAMS), turns)
        assert len(logp) > 2
        np.testing.assert_allclose(logp, found[written], atol=1e-5)


@pytest.mark.heavy
def test_in_bfloat16_the_learner_says_almost_the_same():
    """Not as nearly as of plain keys and values: the engine rounds products of other weights."""
    compute = Compute("bfloat16")
    played, _ = _play(SIZES, sampling_weights(PARAMS, LATENT, compute))
    gaps = [mean_gap((LATENT, PARAMS), turns, compute) for turns in played]
    assert 0 < np.mean(gaps) <= 5e-3


@pytest.mark.heavy
def test_adapters_lie_beside_absorbed_weights():
    """Of two versions, the second published to an engine that has pages of the first."""
    lora = LoraShape(rank=3, alpha=6.0, targets=("q_up", "layers.*.kv_*", "o"))
    params = PARAMS | new_adapters(jax.random.key(1), LATENT, lora)
    versions = [
        with_trained(params, jax.tree.map(lambda x, n=n: x + 0.03 * n, trained(params)))
        for n in (1, 2)
    ]
    served = [sampling_weights(each, LATENT, FLOAT32) for each in versions]
    engine = Engine(LATENT, SIZES, STOP, served[0])
    for version, weights in enumerate(served):
        engine.publish(weights, version)
        turns = play(engine, version, 2, first=PROMPT)
        found, _ = learner_scores((LATENT, versions[version]), turns)
        logp = np.concatenate([reply.logp_plain for _, reply in turns])
        np.testing.assert_allclose(logp, found[where_written(turns)], atol=1e-5)
    engine.close()


@pytest.mark.heavy
def test_who_gives_way_and_comes_back_is_not_changed(roomy):
    played, engine = _play(dataclasses.replace(SIZES, pages=14))
    assert engine.stats.preemptions > 0 and engine.stats.swapped_pages > 0
    for turns, expected in zip(played, roomy[0], strict=True):
        assert_same(turns, expected)


@pytest.mark.heavy
def test_zeros_behind_latents_change_nothing(roomy, monkeypatch):
    """As TPUs have them, and also where some give way."""
    monkeypatch.setitem(cache.LANES, "cpu", 20)  # 32 become 40
    played, engine = _play(dataclasses.replace(SIZES, pages=14))
    assert {pages.shape for pages in jax.tree.leaves(engine._cache)} == {(14, 8, 40)}
    assert engine.stats.swapped_pages > 0
    for turns, expected in zip(played, roomy[0], strict=True):
        for (_, reply), (_, wanted) in zip(turns, expected, strict=True):
            np.testing.assert_array_equal(reply.ids, wanted.ids)
            # A CPU adds the terms of a product in another order.
            np.testing.assert_allclose(reply.logp_plain, wanted.logp_plain, atol=5e-6)


@pytest.mark.heavy
def test_on_a_mesh_each_device_has_the_latents_of_its_own_conversations(roomy):
    mesh = make_mesh(MeshShape(data=2, expert=2, tensor=2))
    learned = jax.device_put(PARAMS, param_shardings(LATENT, mesh))
    shape = dataclasses.replace(SIZES, max_sequences=4, pages=48, dispatch_ahead=True)
    played, engine = _play(shape, sampling_weights(learned, LATENT, FLOAT32, mesh), mesh)
    assert engine.stats.swapped_pages > 0
    for turns, expected in zip(played, roomy[0], strict=True):
        for (_, reply), (_, wanted) in zip(turns, expected, strict=True):
            np.testing.assert_array_equal(reply.ids, wanted.ids)
            np.testing.assert_allclose(reply.logp_plain, wanted.logp_plain, atol=1e-5)
    places = cache_shardings(LATENT, mesh)
    for pages, place in zip(jax.tree.leaves(engine._cache), places, strict=True):
        assert pages.sharding.is_equivalent_to(place, pages.ndim)  # as it was in the beginning
        assert {each.data.shape for each in pages.addressable_shards} == {(12, 8, 32)}


def test_a_page_has_the_latent_and_the_rotated_key_of_each_token():
    for platform, width in (("cpu", 24 + 8), ("gpu", 24 + 8), ("tpu", 128)):
        kept = empty_cache(LATENT, num_pages=10, page_tokens=8, platform=platform)
        assert [x.shape for x in jax.tree.leaves(kept)] == [(10, 8, width)] * 2


def test_int8_pages_are_refused():
    with pytest.raises(ValueError, match=r"engine\.int8_cache True is not supported for latent"):
        Engine(LATENT, engine_shape(int8_cache=True), STOP, PARAMS)


def test_keys_and_values_are_never_expanded_and_latents_nowhere_copied():
    """They would be the largest arrays with as many tokens as a conversation can have."""
    slots, W, steps = 2, 9, 8  # of 72 tokens, and of 80 with those that are decoded
    mixer = dataclasses.replace(LATENT.layers[0].mixer, nope_width=48, value_width=40)
    shape = with_mixer(LATENT, mixer)
    params, kept = init_params(jax.random.key(0), shape), empty_cache(shape, slots * W, 8)
    page_SW = np.arange(slots * W, dtype=np.int32).reshape(slots, W)
    arguments = PROGRAM.keywords | {"shape": shape, "steps": steps}
    program = (
        prefill_and_decode.lower(params, kept, RESTING, page_SW, _chunks(), RESTING, **arguments)
        .compile()
        .as_text()
    )
    places = {72, 80, slots * 72, slots * 80}
    sizes = [list(map(int, found.split(","))) for found in re.findall(r"f32\[([\d,]+)\]", program)]
    of_tokens = [dims for dims in sizes if places & set(dims)]
    assert [2, 80, 32] in of_tokens and [18, 8, 32] in sizes
    assert max(map(math.prod, of_tokens)) < 72 * mixer.num_heads * mixer.value_width
    assert not re.findall(r"= f32\[(?:18,8,32|2,80,32)\]\S* copy\(.*", program)
