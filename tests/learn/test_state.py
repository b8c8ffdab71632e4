"""The optimizer: its schedule, and which weights Muon takes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.tree_utils import tree_get_all_with_path

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


# m = 0.8 * 0.2 * 1 + 0.2 * 0.5, without its bias; beside Muon, Adam looks ahead as Nesterov does.
MOMENTS = {"adamw": 0.26 / (1 - 0.8**2), "muon": 0.8 * 0.26 / (1 - 0.8**3) + 0.1 / (1 - 0.8**2)}


@pytest.mark.parametrize("name", MOMENTS)
def test_adam_by_hand(name):
    """Two gradients, alike in all weights: the first is four times the bound, the second half."""
    params = init_params(jax.random.key(0), MOE)
    bound = sum(leaf.size for leaf in jax.tree.leaves(params)) ** 0.5  # the norm of ones
    fields = {"learning_rate": 0.01, "b1": 0.8, "b2": 0.9, "clip_norm": bound}
    optimizer = make_optimizer(
        dataclasses.replace(HYPERS, name=name, weight_decay=0.0, **fields), MOE
    )
    state = optimizer.init(params)
    for size in (4.0, 0.5):
        gradient = jax.tree.map(lambda w, size=size: jnp.full_like(w, size), params)
        updates, state = optimizer.update(gradient, state, params)
        if size == 4.0:  # every first moment, Muon's too, is (1 - b1) of the clipped gradient
            for moment in jax.tree.leaves([m for _, m in tree_get_all_with_path(state, "mu")]):
                np.testing.assert_allclose(moment, 0.2, rtol=1e-5)
    second = (0.9 * 0.1 * 1 + 0.1 * 0.25) / (1 - 0.9**2)
    expected = -0.01 * MOMENTS[name] / second**0.5
    np.testing.assert_allclose(updates["embed_VD"], expected, rtol=1e-4)


def test_adafactors_update_is_bounded_where_a_gradient_grows():
    fields = {"learning_rate": 0.01, "weight_decay": 0.0, "clip_norm": 1e9}
    optimizer = make_optimizer(dataclasses.replace(HYPERS, name="adafactor", **fields), MOE)
    params = {"w_D": jnp.zeros(3)}
    state = optimizer.init(params)
    for size in (1.0, 10.0):
        updates, state = optimizer.update({"w_D": jnp.full(3, size)}, state, params)
    # Without the bound it would be 10 / sqrt(100 - 99 (1 - 2^-0.8)) = 1.31 rates.
    np.testing.assert_allclose(updates["w_D"], -0.01, rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon", "adafactor"])
def test_weights_decay_by_the_rate_of_their_own_update(name):
    params = init_params(jax.random.key(0), MOE)
    fields = {"name": name, "learning_rate": 0.01, "muon_learning_rate": 0.1}

    def first_update(weight_decay):
        hypers = dataclasses.replace(HYPERS, weight_decay=weight_decay, **fields)
        optimizer = make_optimizer(hypers, MOE)
        return optimizer.update(params, optimizer.init(params), params)[0]

    plain, decayed = first_update(0.0), first_update(0.5)
    matrix_rate = 0.1 if name == "muon" else 0.01
    for rate, of in ((0.01, lambda p: p["embed_VD"]), (matrix_rate, _query)):
        np.testing.assert_allclose(of(decayed) - of(plain), -rate * 0.5 * of(params), atol=1e-6)


def _query(params):
    return params["layers"][0]["q_DNH"]


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


def test_muon_moves_a_matrix_further_that_has_more_outputs_than_inputs():
    optimizer = make_optimizer(dataclasses.replace(MUON, weight_decay=0.0), MOE)
    params = init_params(jax.random.key(0), MOE)
    grads = jax.tree.map(lambda p: jax.random.normal(jax.random.key(1), p.shape), params)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    wide, narrow = updates["layers"][0]["q_DNH"], updates["layers"][0]["o_NHD"]
    wide, narrow = wide.reshape(MOE.width, -1), narrow.reshape(-1, MOE.width)
    assert wide.shape == narrow.shape[::-1] == (MOE.width, 2 * MOE.width)
    longest = [float(jnp.linalg.norm(each, 2)) for each in (wide, narrow)]
    assert longest[0] == pytest.approx(2**0.5 * longest[1], rel=0.1)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="'sgd' is unknown: choose adamw, adafactor or muon"):
        dataclasses.replace(HYPERS, name="sgd")
