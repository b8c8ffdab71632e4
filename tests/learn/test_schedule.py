"""Rates fall from an event on, for every optimizer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ale_jax.config.hardware import MeshShape
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.learn.schedule import NEVER, EventDecay, begin_decay
from ale_jax.learn.state import TrainState, begin, last_rate, table_optimizer
from ale_jax.model.params import init_table, param_table
from ale_jax.model.sharding import make_mesh
from tests.model.shapes import DENSE

HYPERS = OptimizerHypers(
    name="muon",
    learning_rate=5e-4,
    muon_learning_rate=0.0025,
    warmup_ratio=0.1,
    decay_ratio=0.35,
    b1=0.0,
    weight_decay=0.1,
)
UPDATES, EVENT = 32, 8  # of which rates rise in 3 and fall in 10
# An embedding, which Muon leaves to Adam, and a matrix.
TABLE = {
    "embed_VD": param_table(DENSE)["embed_VD"],
    "gate_DF": param_table(DENSE)["layers"][0]["gate_DF"],
}


def changes(hypers, event=None):
    """The changes of each weight in each update with a constant gradient."""
    optimizer, mesh = table_optimizer(hypers, TABLE, UPDATES), make_mesh(MeshShape(data=-1))
    params = jax.device_put(
        init_table(jax.random.key(0), TABLE), NamedSharding(mesh, PartitionSpec())
    )
    state = begin(params, optimizer, mesh)
    update, opt_state, found = jax.jit(optimizer.update), state.opt_state, []
    gradient = jax.tree.map(jnp.ones_like, state.params)
    for number in range(UPDATES):
        if event is not None and number >= event:  # a second call changes nothing
            opt_state = begin_decay(opt_state)
        change, opt_state = update(gradient, opt_state, state.params)
        found.append([np.asarray(leaf) for leaf in jax.tree.leaves(change)])
    return found


@pytest.mark.parametrize("name", ["adamw", "muon", "adafactor"])
def test_updates_are_whole_until_the_event_and_a_tenth_at_the_end(name):
    hypers = dataclasses.replace(HYPERS, name=name)
    whole = changes(dataclasses.replace(hypers, decay_ratio=0.0))
    waiting = changes(dataclasses.replace(hypers, decay_success=0.5))
    fallen = changes(dataclasses.replace(hypers, decay_success=0.5), EVENT)
    factors = [1.0] * EVENT + [1 - 0.09 * k for k in range(10)] + [0.1] * (UPDATES - EVENT - 10)
    for number, factor in enumerate(factors):
        for each, never, now in zip(whole[number], waiting[number], fallen[number], strict=True):
            np.testing.assert_allclose(never, each, rtol=1e-6)
            np.testing.assert_allclose(now, factor * each, rtol=1e-5, atol=1e-12)


def test_the_last_rate_is_that_of_the_last_update():
    """It rises over 3 of 32 updates, and falls over 10."""
    shares = {0: 1 / 3, 1: 1 / 3, 2: 2 / 3, 3: 1.0, 4: 1.0, 9: 1 - 0.9 * 5 / 10, 32: 0.1}
    for made, share in shares.items():
        state = TrainState({}, (), np.int32(made))
        assert last_rate(HYPERS, UPDATES, state) == pytest.approx(share * HYPERS.learning_rate)
    waiting = dataclasses.replace(HYPERS, decay_success=0.5)
    for begins, share in ((4, 1 - 0.9 * 4 / 10), (NEVER, 1.0)):
        state = TrainState({}, (EventDecay(np.int32(9), np.int32(begins)),), np.int32(9))
        assert last_rate(waiting, UPDATES, state) == pytest.approx(share * HYPERS.learning_rate)


def test_an_event_without_a_decay_is_refused():
    with pytest.raises(ValueError, match=r"decay_success 0\.5 begins no decay without decay_ratio"):
        OptimizerHypers(decay_success=0.5)
