"""An update that is not finite changes nothing, and many in a row end the run."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ale_jax.config.critics import CriticsHypers
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.data.packing import pack_all
from ale_jax.errors import RunFailed
from ale_jax.learn.critics import (
    CRITIC_SKIPPED,
    CRITICS_BROKEN,
    CRITICS_WITHOUT_UPDATE,
    learn_values,
)
from ale_jax.learn.finite import BROKEN, SKIPPED, SkippedUpdates
from ale_jax.learn.state import begin, init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, UpdateStep, make_train_step
from ale_jax.model.sharding import make_mesh
from tests.learn.rewarded import rewarded_batches
from tests.learn.test_critics import gae
from tests.learn.test_step import ADAFACTOR, HYPERS, MUON, sample_transcripts, transcript_loss
from tests.model.shapes import DENSE, changed
from tests.rows import each_row

POLICY = changed(DENSE, num_layers=1)


@pytest.fixture(scope="module", params=[HYPERS, ADAFACTOR, MUON], ids=lambda hp: hp.name)
def training(request):
    """(a state, its train step, a microbatch). The step takes the state's moments over."""
    mesh, optimizer = make_mesh(MeshShape(data=8)), make_optimizer(request.param, POLICY)
    step = make_train_step(ModelSpec(POLICY, mesh), optimizer, transcript_loss)
    batches = pack_all(sample_transcripts(8), Shape(8, 64, 8))
    return lambda: init_state(jax.random.key(0), POLICY, optimizer, mesh), step, batches[:1]


@pytest.fixture(scope="module")
def toy_step():
    """A step of three weights of 2, by 1e38 times the gradient; the loss does not depend on it."""
    mesh, optimizer = make_mesh(MeshShape(data=8)), optax.sgd(1e38)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def weights():
        return {"layers": [{"w_D": jax.device_put(jnp.full(3, 2.0), everywhere)}]}

    def gradient_of(moved, params, arrays, loss_denominator, share):
        factor = arrays["gradient_BT"].max()
        grads = jax.tree.map(lambda w: factor * w, moved)
        return grads, {"loss": arrays["loss_BT"].max()}, None

    step = UpdateStep(gradient_of, optimizer, weights(), mesh)

    def made(gradient, loss):
        batch = {"gradient_BT": gradient, "loss_BT": loss}
        arrays = {name: np.full((8, 1), x, np.float32) for name, x in batch.items()}
        state, sums, _ = step(begin(weights(), optimizer, mesh), [SimpleNamespace(**arrays)], 1.0)
        return state, sums

    return made


def _same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)))


def test_an_infinite_gradient_leaves_weights_moments_and_count_as_they_were(training):
    make, step, batches = training
    before = jax.device_get(make())
    state, sums, _ = step(make(), batches, 0.0)  # the loss is divided by it
    assert sums[SKIPPED] and not sums[BROKEN] and not np.isfinite(sums["loss"])
    assert _same(jax.device_get(state), before)
    state, sums, _ = step(state, batches, 100.0)
    assert not sums[SKIPPED] and not sums[BROKEN]
    assert state.step == 1 and not _same(state.params, before.params)


@each_row(
    "gradient, loss, applied",
    [
        (0.5, 3.0, True),  # the new weight is 2 - 1e38 * 0.5 * 2
        (0.5, np.nan, False),
        (0.5, np.inf, False),
        (np.nan, 3.0, False),
        (2e19, 3.0, False),  # its square is more than float32 holds
    ],
)
def test_loss_and_gradient_must_be_finite(toy_step, gradient, loss, applied):
    state, sums = toy_step(gradient, loss)
    assert (bool(sums[SKIPPED]), bool(sums[BROKEN])) == (not applied, False)
    weight = np.float32(-1e38 if applied else 2.0)
    np.testing.assert_array_equal(state.params["layers"][0]["w_D"], np.full(3, weight))
    assert state.step == applied


def test_an_update_after_which_weights_are_not_finite_is_told(toy_step):
    _, sums = toy_step(10.0, 3.0)  # the new weight is 2 - 2e39
    assert not sums[SKIPPED] and sums[BROKEN]


def test_weights_that_are_not_finite_are_told_from_an_update_that_is_not(training):
    make, step, batches = training
    state = make()
    spoilt = state.params | {"embed_VD": state.params["embed_VD"].at[0, 0].set(np.nan)}
    _, sums, _ = step(state.replace(params=spoilt), batches, 100.0)
    assert sums[SKIPPED] and sums[BROKEN]
    with pytest.raises(RunFailed, match=r"step 7: the weights are not finite"):
        SkippedUpdates(9, "begin anew").note(jax.device_get(sums), 7)


def test_only_skipped_updates_in_a_row_end_the_run():
    skipped = SkippedUpdates(3, "begin anew")
    good, bad = {SKIPPED: np.False_, BROKEN: np.False_}, {SKIPPED: np.True_, BROKEN: np.False_}
    assert [skipped.note(each, 1) for each in (bad, bad, good, bad, bad)] == [1, 1, 0, 1, 1]
    assert not skipped.note({}, 2), "a step in which nothing had a gradient is none of them"
    with pytest.raises(RunFailed, match=r"step 3: 3 updates in a row .*: begin anew"):
        skipped.note(bad, 3)


def test_a_critic_is_without_update_if_all_of_its_updates_of_a_step_were_skipped():
    skipped = {0: iter([True, False]), 1: iter([True, True])}
    broken = {0: False, 1: True}

    def update(some, number, tokens):
        figures = {"tokens": tokens, "squares": 0.0, "grad_norm": 0.0}
        return figures | {SKIPPED: next(skipped[number]), BROKEN: broken[number]}

    hp = CriticsHypers(count=2, epochs=2)
    figures = learn_values(rewarded_batches(), hp, gae(), update)
    assert (figures[CRITIC_SKIPPED], figures[CRITICS_WITHOUT_UPDATE]) == (3, 1)
    assert figures[CRITICS_BROKEN] == 1
