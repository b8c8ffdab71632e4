"""The optimizer: its schedule, and which weights Muon takes."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.tree_utils import tree_get_all_with_path

from ale_jax.config.hardware import MeshShape
from ale_jax.learn.state import draw_table, make_optimizer, table_optimizer
from ale_jax.model.params import Param, init_params, init_table, param_table
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.learn.test_step import HYPERS, MUON
from tests.model.shapes import DENSE, MOE, changed

SHAPE = changed(MOE, num_layers=1)
ONES = jax.nn.initializers.ones
# An embedding and a norm, which Muon leaves to Adam, and a matrix.
TABLE = {
    "embed_VD": param_table(SHAPE)["embed_VD"],
    "q_DNH": param_table(SHAPE)["layers"][0]["q_DNH"],
    "final_norm_D": param_table(SHAPE)["final_norm_D"],
}


@pytest.fixture(scope="module")
def params():
    return init_table(jax.random.key(0), TABLE)


def _sizes(hypers, steps, updates=0):
    """Of a weight's update at each step, under a constant gradient. updates: of the whole run."""
    table = {"embed_VD": param_table(SHAPE)["embed_VD"]}
    optimizer, params = (
        table_optimizer(hypers, table, updates),
        init_table(jax.random.key(0), table),
    )
    state, update, sizes = optimizer.init(params), jax.jit(optimizer.update), []
    grads = jax.tree.map(np.ones_like, params)
    for _ in range(steps):
        updates, state = update(grads, state, params)
        sizes.append(np.abs(updates["embed_VD"]).mean())
    return sizes


def test_the_rate_rises_from_its_first_step_and_falls_to_a_tenth():
    hypers = dataclasses.replace(HYPERS, warmup_ratio=0.1, decay_ratio=0.5, weight_decay=0.0)
    for updates in (40, 80):  # a run of twice the length rises and falls half as fast
        rise, fall = updates // 10, 18 * updates // 40
        sizes = np.array(_sizes(hypers, updates, updates)) / hypers.learning_rate
        # Adam's own step is about 1.
        np.testing.assert_allclose(sizes[0], 1 / rise, rtol=0.01)
        np.testing.assert_allclose(sizes[rise - 1 : rise + 1], 1.0, rtol=0.01)
        np.testing.assert_allclose(sizes[rise + fall // 2], 1 - 0.9 / 2, rtol=0.01)
        np.testing.assert_allclose(sizes[rise + fall :], 0.1, rtol=0.01)


@pytest.mark.parametrize("hypers", [HYPERS, MUON], ids=lambda hypers: hypers.name)
def test_what_no_gradient_moves_does_not_decay(hypers):
    table = {"router_bias_E": Param((4,), (None,), ONES, is_frozen=True), **TABLE}
    params = init_table(jax.random.key(0), table)
    optimizer = table_optimizer(dataclasses.replace(hypers, weight_decay=0.1), table)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert not updates["router_bias_E"].any()
    assert all(updates[name].any() for name in TABLE)


def test_without_decay_the_rate_stays():
    sizes = _sizes(dataclasses.replace(HYPERS, weight_decay=0.0), 30)
    np.testing.assert_allclose(sizes, HYPERS.learning_rate, rtol=0.01)


# m = 0.8 * 0.2 * 1 + 0.2 * 0.5, without its bias; beside Muon, Adam looks ahead as Nesterov does.
MOMENTS = {"adamw": 0.26 / (1 - 0.8**2), "muon": 0.8 * 0.26 / (1 - 0.8**3) + 0.1 / (1 - 0.8**2)}


@pytest.mark.parametrize("name", MOMENTS)
def test_adam_by_hand(params, name):
    """Two gradients, alike in all weights: the first is four times the bound, the second half."""
    bound = sum(leaf.size for leaf in jax.tree.leaves(params)) ** 0.5  # the norm of ones
    fields = {"learning_rate": 0.01, "b1": 0.8, "b2": 0.9, "clip_norm": bound}
    hypers = dataclasses.replace(HYPERS, name=name, weight_decay=0.0, **fields)
    optimizer = table_optimizer(hypers, TABLE)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for size in (4.0, 0.5):
        gradient = jax.tree.map(lambda w, size=size: np.full_like(w, size), params)
        updates, state = update(gradient, state, params)
        if size == 4.0:  # every first moment, Muon's too, is (1 - b1) of the clipped gradient
            for moment in jax.tree.leaves([m for _, m in tree_get_all_with_path(state, "mu")]):
                np.testing.assert_allclose(moment, 0.2, rtol=1e-5)
    second = (0.9 * 0.1 * 1 + 0.1 * 0.25) / (1 - 0.9**2)
    expected = -0.01 * MOMENTS[name] / second**0.5
    np.testing.assert_allclose(updates["embed_VD"], expected, rtol=1e-4)


def test_adafactors_update_is_bounded_where_a_gradient_grows():
    fields = {"learning_rate": 0.01, "weight_decay": 0.0, "clip_norm": 1e9}
    optimizer = make_optimizer(dataclasses.replace(HYPERS, name="adafactor", **fields), SHAPE)
    params = {"w_D": jnp.zeros(3)}
    state = optimizer.init(params)
    for size in (1.0, 10.0):
        updates, state = optimizer.update({"w_D": jnp.full(3, size)}, state, params)
    # Without the bound it would be 10 / sqrt(100 - 99 (1 - 2^-0.8)) = 1.31 rates.
    np.testing.assert_allclose(updates["w_D"], -0.01, rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon", "adafactor"])
def test_weights_decay_by_the_rate_of_their_own_update(params, name):
    fields = {"name": name, "learning_rate": 0.01, "muon_learning_rate": 0.1}

    def first_update(weight_decay):
        hypers = dataclasses.replace(HYPERS, weight_decay=weight_decay, **fields)
        optimizer = table_optimizer(hypers, TABLE)
        return jax.jit(optimizer.update)(params, optimizer.init(params), params)[0]

    plain, decayed = first_update(0.0), first_update(0.5)
    matrix_rate = 0.1 if name == "muon" else 0.01
    for rate, weight in ((0.01, "embed_VD"), (matrix_rate, "q_DNH")):
        change = np.asarray(decayed[weight]) - np.asarray(plain[weight])
        np.testing.assert_allclose(change, -rate * 0.5 * np.asarray(params[weight]), atol=1e-6)


@pytest.fixture(scope="module")
def muon_step():
    """(random gradients, Muon's first updates by them) of a layer."""
    params = init_params(jax.random.key(0), SHAPE)
    optimizer = make_optimizer(dataclasses.replace(MUON, weight_decay=0.0), SHAPE)
    draw = np.random.default_rng(1)
    grads = jax.tree.map(lambda p: draw.normal(size=p.shape).astype(np.float32), params)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
    return grads["layers"][0], jax.device_get(updates)["layers"][0]


def test_muon_takes_matrices_and_adam_the_rest(muon_step):
    gradient, layer = muon_step
    for expert in (0, 5):  # each expert is a matrix of its own: all singular values about equal
        values = np.linalg.svd(layer["gate_EDF"][expert], compute_uv=False)
        assert values.max() < 2.5 * values.min()
    values = np.linalg.svd(layer["q_DNH"].reshape(MOE.width, -1), compute_uv=False)
    assert values.max() < 2.5 * values.min()
    for name in ("router_DE", "attn_norm_D"):  # Adam's first step follows the gradient's sign alone
        sizes = np.abs(layer[name])
        np.testing.assert_allclose(sizes, np.full_like(sizes, sizes.mean()), rtol=0.01)
        assert (np.sign(layer[name]) == -np.sign(gradient[name])).all()


def test_muon_moves_a_matrix_further_that_has_more_outputs_than_inputs(muon_step):
    _, layer = muon_step
    wide, narrow = layer["q_DNH"], layer["o_NHD"]
    wide, narrow = wide.reshape(MOE.width, -1), narrow.reshape(-1, MOE.width)
    assert wide.shape == narrow.shape[::-1] == (MOE.width, 2 * MOE.width)
    longest = [float(np.linalg.norm(each, 2)) for each in (wide, narrow)]
    assert longest[0] == pytest.approx(2**0.5 * longest[1], rel=0.1)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="'sgd' is unknown: choose one of adamw, adafactor, muon"):
        dataclasses.replace(HYPERS, name="sgd")


def test_weights_are_drawn_one_by_one_as_all_at_once_by_as_many_programs_at_any_depth(caplog):
    mesh, key = make_mesh(MeshShape(data=4, tensor=2)), jax.random.key(0)

    def drawn(layers):
        shape = changed(DENSE, num_layers=layers)
        places = param_shardings(shape, mesh)
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            caplog.clear()
            params = draw_table(key, param_table(shape), places)
        compiled = sum("XLA compilation of jit(_draw)" in r.getMessage() for r in caplog.records)
        assert jax.tree.map(lambda w: w.sharding, params) == places
        return compiled, shape, params

    compiled, shape, params = drawn(3)
    assert 0 < compiled < len(jax.tree.leaves(params))
    at_once = jax.jit(init_params, static_argnums=1)(key, shape)
    jax.tree.map(np.testing.assert_array_equal, params, at_once)
    assert drawn(5)[0] == 0, "all of its weights are like those that were drawn"
