"""The update in parts is the optimizer's, and no deeper model takes more programs."""

import dataclasses
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ale_jax.config.model import ALL_LINEAR, FULL, LoraShape
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.update import Update
from ale_jax.model.lora import trained
from tests.learn.test_step import ADAFACTOR, HYPERS, MUON
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, MIXED, changed
from tests.rows import each_row

ADAPTERS = LoraShape(rank=2, alpha=4.0, targets=(ALL_LINEAR,))
WIDE = dataclasses.replace(MIXED, width=128)  # so that Adafactor has moments to factor


def _state(shape, optimizer, lora=FULL):
    mesh = mesh_of()
    return init_state(jax.random.key(0), shape, optimizer, mesh, lora), mesh


def _gradient(weights, size):
    draw = np.random.default_rng(0)
    return jax.tree.map(
        lambda w: jax.device_put((size * draw.normal(size=w.shape)).astype(np.float32), w.sharding),
        weights,
    )


@pytest.mark.heavy
@each_row(
    "hypers, shape, lora",
    [(HYPERS, DENSE, FULL), (ADAFACTOR, WIDE, FULL), (MUON, MIXED, FULL), (MUON, MIXED, ADAPTERS)],
)
def test_parts_are_updated_as_the_whole_is(hypers, shape, lora):
    optimizer = make_optimizer(dataclasses.replace(hypers, clip_norm=1.0), shape, lora)
    state, mesh = _state(shape, optimizer, lora)
    update = Update(optimizer, trained(state.params), mesh)
    whole = jax.jit(optimizer.update)
    parts, opt_state = (
        (trained(state.params), state.opt_state, state.step),
        optimizer.init(trained(state.params)),
    )
    expected = trained(state.params)
    for size in (1.0, 1e-4):  # of which the first is clipped
        grads = _gradient(expected, size)
        norm = optax.tree.norm(grads)
        assert (norm > hypers.clip_norm) == (size == 1.0)
        changes, opt_state = whole(grads, opt_state, expected)
        expected = optax.apply_updates(expected, changes)
        weights, moments, step = parts
        *parts, sums = update(grads, moments, weights, step, jnp.float32(1.0))
        np.testing.assert_allclose(sums["grad_norm"], norm, rtol=1e-6)

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)

    jax.tree.map(close, parts[:2], [expected, opt_state])
    assert parts[2] == 2


def test_adamw_computes_each_number_once_from_no_copy():
    optimizer = make_optimizer(HYPERS, MIXED)
    state, mesh = _state(MIXED, optimizer)
    update, grads = Update(optimizer, state.params, mesh), _gradient(state.params, 1.0)
    arguments = grads, state.opt_state, state.params, state.step, jnp.float32(1.0)
    _, *parts = [each.compile().as_text() for each in update.lower(*arguments)]
    for program in parts:
        assert " copy(" not in program
        # Scalars have no dims.
        divisions, roots = (
            re.findall(rf"= f32\[\d\S* {name}\(", program) for name in ("divide", "sqrt")
        )
        assert len(divisions) == len(roots) > 0


def test_a_deeper_model_takes_no_more_programs(caplog):
    def compiled(layers):
        shape = changed(DENSE, num_layers=layers)
        optimizer = make_optimizer(HYPERS, shape)
        state, mesh = _state(shape, optimizer)
        update, grads = Update(optimizer, trained(state.params), mesh), _gradient(state.params, 1.0)
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            caplog.clear()
            arguments = grads, state.opt_state, state.params, state.step, jnp.float32(1.0)
            assert len(update.lower(*arguments)) == 3
            update(*arguments)
        return sorted(
            message.split()[4]
            for record in caplog.records
            if (message := record.getMessage()).startswith("Finished XLA compilation of")
            and ("_judge" in message or "_update_part" in message)
        )

    assert compiled(2) == compiled(5) == ["jit(_judge)", *["jit(_update_part)"] * 2]
