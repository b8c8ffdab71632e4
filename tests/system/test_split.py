"""Runs whose engines have devices for themselves: they compute what others do, at the same time."""

import tempfile
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest

from ale_jax.data.journal import Journal
from ale_jax.model.sharding import dispatching
from ale_jax.model.sides import learner_mesh
from ale_jax.system.step_metrics import step_metrics
from ale_jax.system.tasks import Cursor
from ale_jax.system.trainer import STATE, Trainer
from tests.engine.playing import play
from tests.system.in_process import Run, run_config
from tests.system.untimed import TIME_PREFIX

pytestmark = pytest.mark.heavy

STEPS = 2
HALF = 4
# Four learn, and the engine has the other four; or four do both.
SPLIT = {"rollout": {"engine_devices": HALF}}
SHARED = {"mesh": {"data": HALF}}


def _config(alpha=0.0, **sections):
    rl = {"alpha": alpha, "groups_per_step": 2, "group_size": 4}
    small = {"num_layers": 1, "num_experts": 0, "dense_layers": ()}
    return run_config(STEPS, "grpo", rl=rl, model=small, **sections)


def _is_equal_in_all_runs(name):
    return not name.startswith(TIME_PREFIX)


def trained(config, shown=_is_equal_in_all_runs):
    """The trainer after a run, and the metrics of its steps. shown: which of them."""
    run, lines = Run(config), []

    def report(step):
        values = step_metrics(step)
        lines.append({name: value for name, value in values.items() if shown(name)})

    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(Path(folder), lambda *_, **__: None) as journal,
    ):
        run.train(Cursor(), journal, report, lambda cursor, resampling: None)
    return run.trainer, lines


@pytest.fixture(scope="module")
def split():
    return trained(_config(**SPLIT))


def _devices(tree):
    return {device for x in jax.tree.leaves(tree) for device in x.sharding.device_set}


def test_it_computes_what_a_run_on_shared_devices_does(split):
    trainer, lines = split
    shared, expected = trained(_config(**SHARED))
    assert len(lines) == STEPS and any("loss" in line for line in lines), "nothing was learned"
    assert lines == expected
    assert trainer.digest() == shared.digest(), "to the last bit"


def test_learner_and_engines_share_no_device(split):
    trainer, _ = split
    (engine,) = trainer.engines._engines
    assert _devices(trainer.state) == set(jax.devices()[:HALF])
    assert _devices((engine._weights[0], engine._cache)) == set(jax.devices()[HALF:])


def test_engines_sample_while_the_learner_holds_its_devices(split):
    trainer, _ = split
    trainer.engines = None  # those of the run are closed
    trainer.publish(version=3)
    with closing(trainer.open_engines((0,))) as engines, dispatching(trainer.mesh):
        turns = play(engines, 0, 1)
    assert {int(v) for _, reply in turns for v in reply.version} == {3}


def test_rollouts_may_be_ahead():
    trainer, lines = trained(_config(alpha=1.0, **SPLIT))
    assert len(lines) == STEPS and trainer.engines.version == STEPS
    assert all(np.isfinite(line["loss"]) for line in lines if "loss" in line)
    assert max(line["staleness_max"] for line in lines) <= 1


def test_a_run_goes_on_with_another_division(split, tmp_path):
    trainer, _ = split
    trainer.write(folder=str(tmp_path / "state"), what=STATE)
    trainer.files.wait()
    config = _config(rollout={"engine_devices": 6})
    later = Trainer(config, trainer.policy, learner_mesh(config))
    later.read(folder=str(tmp_path / "state"), what=STATE)
    later.close()
    assert _devices(later.state) == set(jax.devices()[:2])
    for found, wanted in zip(*map(jax.tree.leaves, (later.state, trainer.state)), strict=True):
        np.testing.assert_array_equal(found, wanted)
