"""The optimizer: its schedule, and which weights Muon takes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.learn.state import make_optimizer
from ale_jax.model.params import init_params
from tests.learn.test_step import HYPERS, MUON
from tests.model.shapes import MOE


def _sizes(hypers, steps):
    """Of the first weight's update at each step, under a constant gradient."""
    optimizer = make_optimizer(hypers, MOE)
    params = init_params(jax.random.key(0), MOE)
    state, grads = optimizer.init(params), jax.tree.map(jnp.ones_like, params)
    sizes = []
    for _ in range(steps):
        updates, state = optimizer.update(grads, state, params)
        sizes.append(float(jnp.abs(updates["embed_VD"]).mean()))
    return sizes


def test_the_rate_rises_from_its_first_step_and_falls_to_a_tenth():
    hypers = dataclasses.replace(HYPERS, warmup_steps=4, decay_steps=20, weight_decay=0.0)
    sizes = np.array(_sizes(hypers, 40)) / hypers.learning_rate  # Adam's own step is about 1
    np.testing.assert_allclose(sizes[0], 0.25, rtol=0.01)
    assert sizes[3] == max(sizes)
    np.testing.assert_allclose(sizes[10], 1 - 0.9 * 10 / 20, rtol=0.01)
    np.testing.assert_allclose(sizes[20:], 0.1, rtol=0.01)


def test_without_decay_the_rate_stays():
    sizes = _sizes(dataclasses.replace(HYPERS, decay_steps=0, weight_decay=0.0), 30)
    np.testing.assert_allclose(sizes, HYPERS.learning_rate, rtol=0.01)


def test_muon_takes_matrices_and_adam_the_rest():
    optimizer = make_optimizer(dataclasses.replace(MUON, weight_decay=0.0), MOE)
    params = init_params(jax.random.key(0), MOE)
    grads = jax.tree.map(lambda p: jax.random.normal(jax.random.key(1), p.shape), params)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    layer = updates["layers"][0]
    for expert in (0, 5):  # each expert is a matrix of its own: all singular values about equal
        values = jnp.linalg.svd(layer["gate_EDF"][expert], compute_uv=False)
        assert values.max() < 2.5 * values.min()
    values = jnp.linalg.svd(layer["q_DNH"].reshape(MOE.width, -1), compute_uv=False)
    assert values.max() < 2.5 * values.min()
    for name in ("router_DE", "attn_norm_D"):  # Adam's first step follows the gradient's sign alone
        sizes = jnp.abs(layer[name])
        np.testing.assert_allclose(sizes, jnp.full_like(sizes, sizes.mean()), rtol=0.01)
        assert (jnp.sign(layer[name]) == -jnp.sign(grads["layers"][0][name])).all()


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="'sgd' is unknown: choose adamw, adafactor or muon"):
        dataclasses.replace(HYPERS, name="sgd")
