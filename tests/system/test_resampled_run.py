"""A whole run that starts in the middle of the oracles' episodes, and one that goes on with it."""

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from ale_jax.learn.manifest import state_folder
from tests.system.untimed import rl_lines
from tests.system.whole_runs import environment

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
STEPS = 4
ROLLBACK = {
    "rl.alpha": 0.0,
    "rl.steps": STEPS,
    "rl.groups_per_step": 3,
    "agent.turns": 8,
    "worlds.tasks_per_family": 2,
    "resampling.scheme": "rollback",
    "resampling.teacher": "oracle",
    "resampling.threshold": 0.3,  # both members of a group: from 0.34 on
    "checkpoint.keep": STEPS,
}


def _launch(workdir, runtime_name, **overrides):
    command = [sys.executable, "-m", "ale_jax.launch", "--config=configs/smoke.py"]
    command += [f"--workdir={workdir}", f"--config.rollout.runtime={runtime_name}"]
    command += [f"--config.{name}={value}" for name, value in (ROLLBACK | overrides).items()]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)


def _run(workdir, runtime_name):
    result = _launch(workdir, runtime_name)
    assert result.returncode == 0, result.stdout + result.stderr


def _checkpoint(workdir, step):
    folder = workdir / "checkpoints" / f"step_{step:08d}"
    state = jax.device_get(ocp.StandardCheckpointer().restore(state_folder(folder)))
    return state, json.loads((folder / "host.json").read_text())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, runtime_name):
    workdir = tmp_path_factory.mktemp("run") / "unbroken"
    _run(workdir, runtime_name)
    return workdir


def test_an_oracle_that_is_too_long_is_refused_before_anything_is_trained(tmp_path, runtime_name):
    result = _launch(tmp_path, runtime_name, **{"agent.turns": 1})
    assert result.returncode == 2
    assert "and agent.turns is 1: raise it, or leave the family out" in result.stderr
    assert not list((tmp_path / "checkpoints").glob("*"))
    assert "warm start" not in result.stdout


def test_training_starts_near_the_end(unbroken):
    first = rl_lines(unbroken)[0]
    assert first["experts"] == 4 and first["groups_resampled"] == 3
    assert first["prefix_turns_mean"] >= 1  # every oracle takes at least two calls
    assert (
        0 < first["train_rollout_logp_diff"] <= 1e-5
    )  # also of what was written after prefix turns
    assert first["groups_imitated"] > 0 and first["grad_norm"] > 0
    decided = dict(_checkpoint(unbroken, STEPS)[1]["resampling"]["decided"])
    assert decided == {}  # synchronous: nothing is open between two steps


def test_a_run_that_goes_on_ends_like_an_unbroken_one(unbroken, tmp_path, runtime_name):
    workdir = shutil.copytree(unbroken, tmp_path / "resumed")
    for step in (3, 4):
        shutil.rmtree(workdir / "checkpoints" / f"step_{step:08d}")
    (workdir / "summary.json").unlink()
    _run(workdir, runtime_name)
    assert rl_lines(workdir) == rl_lines(unbroken)
    (state, host), (wanted_state, wanted_host) = (
        _checkpoint(folder, STEPS) for folder in (workdir, unbroken)
    )
    assert host == wanted_host
    jax.tree.map(np.testing.assert_array_equal, state, wanted_state)
