"""The engine with weights in eight bits: it samples from just those, and near the learner's."""

import jax
import numpy as np
import pytest

from ale_jax.config.model import ALL_LINEAR, FLOAT32, LoraShape
from ale_jax.engine.engine import Engine
from ale_jax.model.compute import Quantised, dequantise
from ale_jax.model.lora import merged, new_adapters, trained, with_trained
from ale_jax.model.replicas import SamplingCopy, engine_meshes
from ale_jax.model.sampling_weights import sampling_weights
from tests.engine.playing import STOP, learner_scores, mean_gap, play, where_written
from tests.engine.shapes import engine_shape
from tests.model.meshes import mesh_of
from tests.model.shapes import MIXED
from tests.model.weights.families import random_params

pytestmark = pytest.mark.heavy


def test_what_it_says_is_true_of_the_weights_that_it_has():
    first = random_params(MIXED)
    versions = [jax.tree.map(lambda w, n=n: w * n, first) for n in (1.0, 1.1, 1.2)]
    served = [sampling_weights(params, MIXED, FLOAT32, stored_as="int8") for params in versions]
    engine = Engine(MIXED, engine_shape(prefill_tokens=(16,), weights="int8"), STOP, served[0])
    gaps = []
    for version, (params, stored) in enumerate(zip(versions, served, strict=True)):
        engine.publish(stored, version)
        played = play(engine, version, turns=2)
        assert (played[-1][1].version == version).all()
        plain = jax.tree.map(_plain, stored, is_leaf=lambda leaf: isinstance(leaf, Quantised))
        scores, _ = learner_scores((MIXED, plain), played)
        logp_plain = np.concatenate([each.logp_plain for _, each in played])
        np.testing.assert_allclose(logp_plain, scores[where_written(played)], atol=1e-5, rtol=0)
        gaps.append(mean_gap((MIXED, params), played))
    engine.close()
    assert 1e-4 < np.mean(gaps) < 1e-2  # of log-probability, to the float32 policy


def test_adapters_lie_beside_weights_in_eight_bits():
    lora = LoraShape(rank=3, alpha=6.0, targets=(ALL_LINEAR,))
    params = random_params(MIXED) | new_adapters(jax.random.key(1), MIXED, lora)
    versions = [
        with_trained(params, jax.tree.map(lambda x, n=n: x + 0.02 * n, trained(params)))
        for n in range(2)
    ]
    mesh = mesh_of()
    (own,) = engine_meshes(mesh, 1)
    copy = SamplingCopy(MIXED, FLOAT32, mesh, "int8", [own])
    served = [copy(each)[0] for each in versions]
    shape = engine_shape(prefill_tokens=(16,), weights="int8")
    engine = Engine(MIXED, shape, STOP, served[0], own)
    for version, stored in enumerate(served):
        engine.publish(stored, version)
        played = play(engine, version, turns=2)
        plain = jax.tree.map(_plain, stored, is_leaf=lambda leaf: isinstance(leaf, Quantised))
        plain = jax.device_get(merged(plain))
        scores, _ = learner_scores((MIXED, plain), played)
        logp_plain = np.concatenate([each.logp_plain for _, each in played])
        np.testing.assert_allclose(logp_plain, scores[where_written(played)], atol=1e-5, rtol=0)
    engine.close()


def _plain(leaf):
    return dequantise(leaf) if isinstance(leaf, Quantised) else leaf
