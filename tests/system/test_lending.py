"""Engines that lend their devices to an update: when, and that a run computes the same."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.system.lending import Lending, borrowing_mesh, lending_of
from tests.system.configs import smoke_config
from tests.system.in_process import run_config
from tests.system.test_split import trained

STEPS = 3
RL = {"groups_per_step": 2, "group_size": 4}
SMALL = {"num_layers": 1, "num_experts": 0, "dense_layers": ()}
# Two devices learn, and three engines of two each sample, of which one is lent.
APART = {"engine_devices": 6, "devices_per_engine": 2}


@given(st.integers(2, 9), st.data())
def test_the_engines_that_stay_have_no_more_than_usual(engines, data):
    lending = Lending(
        engines, data.draw(st.integers(1, engines - 1)), data.draw(st.integers(1, 99))
    )
    usual, lent = lending.places / engines, False
    for in_progress in data.draw(st.lists(st.integers(0, lending.places), max_size=30)):
        before, lent = lent, lending.lends(in_progress, lent)
        each = in_progress / (engines - lending.count)
        assert not lent or each <= usual
        assert before == lent or lent == (each <= usual * (1.0 if before else 0.75))


def test_devices_change_sides_once_while_few_are_few_enough():
    """Between 30 and 40 conversations it depends on what was before."""
    lending, lent, told = Lending(engines=4, count=2, places=80), False, []
    for in_progress in (35, 31, 30, 35, 40, 41, 35, 31, 29):
        lent = lending.lends(in_progress, lent)
        told.append(lent)
    assert told == [False, False, True, True, True, False, False, False, True]


@pytest.mark.parametrize(
    ("rollout", "rl", "message"),
    [
        ({}, {}, "lent_engines 1 is of engines with devices for themselves: set engine_devices"),
        ({"engine_devices": 4}, {}, "leaves no engine: rollout.engine_devices 4 and .* make 1"),
        (APART, {"record_steps": True}, "lent_engines 1 with rl.record_steps: which devices"),
    ],
)
def test_what_cannot_be_lent_is_refused(rollout, rl, message):
    with pytest.raises(ValueError, match=message):
        lending_of(smoke_config(rollout=rollout | {"lent_engines": 1}, rl=rl))


def test_several_processes_and_rows_that_do_not_divide_are_refused():
    chips = {"chip": "h100", "devices": 16, "devices_per_process": 8}
    config = smoke_config(rollout=APART | {"lent_engines": 1}, hardware=chips)
    with pytest.raises(ValueError, match="lent_engines 1 with 2 processes"):
        lending_of(config)
    config = smoke_config(rollout=APART | {"lent_engines": 2}, learn={"microbatch_rows": 8})
    with pytest.raises(ValueError, match="rows 8 must be a multiple of the mesh's data axes, 6"):
        borrowing_mesh(config, {"data": 2})


def _config(lent, alpha=0.0):
    rollout = APART | {"lent_engines": lent}
    return run_config(STEPS, "grpo", rl=RL | {"alpha": alpha}, model=SMALL, rollout=rollout)


@pytest.mark.heavy
def test_a_run_that_borrows_computes_what_one_does_that_does_not():
    """To the order of sums. Every update is on four devices instead of two."""
    (plain, expected), (lent, lines) = (trained(_config(count)) for count in (0, 1))
    assert len(lines) == STEPS and any("loss" in line for line in lines), "nothing was learned"
    for line, other in zip(lines, expected, strict=True):
        assert line["tokens_crc32"] == other["tokens_crc32"]
        for name, value in line.items():
            if not isinstance(value, dict):
                np.testing.assert_allclose(value, other[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for found, wanted in zip(*map(jax.tree.leaves, (lent.state, plain.state)), strict=True):
        assert found.sharding == wanted.sharding, "it is back where it was"
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert lent._borrows and not plain._borrows
    assert [*lent._borrowed_step._mesh.devices.flat] == jax.devices()[:4]


@pytest.mark.heavy
def test_asynchronous_rollouts_go_on_while_devices_are_lent(monkeypatch):
    """Whatever is in progress: it moves in the middle of replies."""
    monkeypatch.setattr(Lending, "lends", lambda *_: True)
    trainer, lines = trained(_config(1, alpha=1.0), shown=lambda name: True)
    assert len(lines) == STEPS and trainer.engines.version == STEPS
    for line in lines:  # a step without an update borrows nothing
        assert ("loss" in line) == (line["time/lent_s"] > 0.0)
        assert line["time/lent_s"] <= line["time/learner_s"]
    assert all(np.isfinite(line["loss"]) for line in lines if "loss" in line)
