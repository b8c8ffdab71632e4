"""Whole runs as a user starts them: small, but with sandboxes, actors, engine and learner."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import time

import jax
import orbax.checkpoint as ocp
import pytest

from ale_jax import launch
from ale_jax.learn.manifest import state_folder
from tests.quick_compile import QUICK_COMPILE

SYNCHRONOUS = [
    "--config.rl.alpha=0.0",
    "--config.rl.steps=4",
    "--config.rl.groups_per_step=3",
]
# Failures are punished, so that there is something to learn from a policy that knows nothing.
LEARNING = [
    *SYNCHRONOUS,
    "--config.algo.advantage.mean=none",
    "--config.algo.advantage.failure_reward=-1.0",
    "--config.timeline=True",
]


def command(workdir, runtime_name, *overrides):
    return [
        sys.executable,
        "-m",
        "ale_jax.launch",
        "--config=configs/smoke.py",
        f"--workdir={workdir}",
        f"--config.rollout.runtime={runtime_name}",
        *overrides,
    ]


def environment():
    # The tests' eight virtual devices would only slow these processes down.
    return os.environ | {"XLA_FLAGS": QUICK_COMPILE}


def run(workdir, runtime_name, *overrides, **variables):
    """What a run that must succeed prints, in a process of its own."""
    result = subprocess.run(
        command(workdir, runtime_name, *overrides),
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@contextlib.contextmanager
def one_device():
    """Within it, `make_mesh` takes one of this process's devices, as at a person's desk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "device_count", lambda: 1)
        yield


def run_here(workdir, runtime_name, *overrides, **variables):
    """The same in this process, which has loaded all modules. It computes on one device, too, but
    this process has several, so that the last bits of its numbers may differ."""
    _, _, *line = command(workdir, runtime_name, *overrides)
    printed, errors = io.StringIO(), io.StringIO()
    with (
        one_device(),
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        for name, value in variables.items():
            patch.setenv(name, value)
        code = launch.main(line)
    assert code == 0, printed.getvalue() + errors.getvalue()
    return printed.getvalue()


def begin(workdir, runtime_name, *overrides):
    """A process that runs, whose errors can be read."""
    return subprocess.Popen(
        command(workdir, runtime_name, *overrides),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what is done to its group is not done to ours
    )


def interrupt(process, workdir, sign, step):
    """Sends `sign` once the run has a checkpoint of `step`."""
    manifest = workdir / "checkpoints" / f"step_{step:08d}" / "manifest.json"
    deadline = time.monotonic() + 200
    while not manifest.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sign)


def last_state(workdir, step=4):
    """Weights, moments and step as the checkpoint of `step` holds them."""
    folder = state_folder(workdir / "checkpoints" / f"step_{step:08d}")
    return jax.device_get(ocp.StandardCheckpointer().restore(folder))


def broken_off(workdir, copy, after):
    """A copy of a finished run as it was when its newest checkpoint was that of step `after`."""
    shutil.copytree(workdir, copy)
    (copy / "summary.json").unlink()
    for checkpoint in (copy / "checkpoints").glob("step_*"):
        if int(checkpoint.name.removeprefix("step_")) > after:
            shutil.rmtree(checkpoint)
    return copy
