"""Whole runs, small but real: sandboxes, actors, engine, learner; and what interrupts them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from ale_jax.monitor.evaluations import read_evaluations, read_summary
from ale_jax.monitor.events import read_events
from ale_jax.monitor.report import render
from ale_jax.monitor.report_sections import time_splits
from ale_jax.monitor.run_files import read_run
from tests.system.untimed import rl_lines

SYNCHRONOUS = [
    "--config.rl.alpha=0.0",
    "--config.rl.steps=4",
    "--config.rl.groups_per_step=3",
]
NOTHING_HELD_OUT = ["--config.worlds.held_out_families=()", "--config.eval.held_out_tasks=0"]


def _command(workdir, runtime_name, *overrides):
    return [
        sys.executable,
        "-m",
        "ale_jax.launch",
        "--config=configs/smoke.py",
        f"--workdir={workdir}",
        f"--config.rollout.runtime={runtime_name}",
        *overrides,
    ]


def _environment():
    # The tests' eight virtual devices would only slow these processes down.
    return {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


def _run(workdir, runtime_name, *overrides, **environment):
    result = subprocess.run(
        _command(workdir, runtime_name, *overrides),
        env=_environment() | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _interrupt(process, workdir, sign, step):
    """Sends `sign` once the run has a checkpoint of `step`."""
    manifest = workdir / "checkpoints" / f"step_{step:08d}" / "manifest.json"
    deadline = time.monotonic() + 200
    while not manifest.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sign)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, runtime_name):
    workdir = tmp_path_factory.mktemp("run") / "unbroken"
    return workdir, _run(workdir, runtime_name, *SYNCHRONOUS)


def test_a_run_leaves_its_records(unbroken):
    workdir, output = unbroken
    summary = read_summary(workdir / "summary.json")
    assert summary.episodes == 4 * 3 * 2  # steps, groups, members
    assert summary.max_staleness == 0
    assert summary.policy_tokens > summary.episodes
    assert {e.name for e in read_evaluations(workdir / "evaluations.json")} == {
        "warm_start",
        "final",
    }
    lines = rl_lines(workdir)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert 0 < lines[0]["train_rollout_logp_diff"] <= 1e-5
    assert all(
        "train_rollout_logp_diff" not in line for line in lines[1:]
    )  # asked every five steps
    assert all(("router_load_max" in line) == ("loss" in line) for line in lines)
    assert "<html" in (workdir / "report.html").read_text()
    assert json.loads((workdir / "config.json").read_text())["rl"]["alpha"] == 0.0
    assert "report.html" in output


def test_the_report_of_a_real_run_says_where_the_time_went(unbroken):
    run = read_run(unbroken[0])
    controller, episodes = time_splits(run)
    seconds = {bar.label: bar.value for split in (controller, episodes) for bar, _ in split.parts}
    assert seconds.keys() == {"learner", "waiting", "generation", "environment", "verifier"}
    assert min(seconds.values()) > 0
    # The controller does one thing at a time; four of the run's episodes are played at once.
    assert seconds["learner"] + seconds["waiting"] < run.metrics[-1]["seconds"]
    assert sum(bar.value for bar, _ in episodes.parts) < 4 * run.metrics[-1]["seconds"]
    page = render(run)
    assert all(f"</i>{name}<span" in page for name in seconds)


def test_worlds_without_sandboxes_ask_for_no_runtime(tmp_path):
    machine = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "PATH": str(tmp_path)}
    worlds = ["--config.worlds.train_families=('countdown3',)", *NOTHING_HELD_OUT]
    said = _run(tmp_path / "run", "auto", *worlds, **machine)
    assert "sandboxes: none, as no task needs one" in said
    assert read_summary(tmp_path / "run" / "summary.json").episodes == 2 * 2 * 2


def test_an_evaluation_that_is_due_where_a_run_goes_on_is_made_there(tmp_path):
    arithmetic = ["--config.worlds.train_families=('countdown3',)", *NOTHING_HELD_OUT]
    arithmetic.append("--config.eval.every=1")
    _run(tmp_path / "run", "auto", *arithmetic, "--config.rl.steps=2")
    _run(tmp_path / "run", "auto", *arithmetic, "--config.rl.steps=3", "--resume")
    made = {e.name: e.step for e in read_evaluations(tmp_path / "run" / "evaluations.json")}
    assert made == {"warm_start": 0, "step_1": 1, "step_2": 2, "final": 3}
    events = read_events(tmp_path / "run" / "events.jsonl").records
    first, second = (event.detail for event in events if event.kind == "started")
    assert first == second and f"jax {jax.__version__}, jaxlib " in first and first.endswith("cpu")


def test_a_step_that_is_made_anew_is_evaluated_anew(tmp_path):
    path = tmp_path / "run" / "evaluations.json"
    arithmetic = ["--config.worlds.train_families=('countdown3',)", *NOTHING_HELD_OUT]
    arithmetic += ["--config.eval.every=1", "--config.rl.steps=2", "--config.checkpoint.every=9"]
    _run(tmp_path / "run", "auto", *arithmetic)
    # As if the run had been stopped before its last step: it goes on from the warm start.
    (tmp_path / "run" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000002")
    before = {e.name: e.seconds for e in read_evaluations(path)}
    _run(tmp_path / "run", "auto", *arithmetic)
    after = {e.name: e.seconds for e in read_evaluations(path)}
    assert after["step_1"] != before["step_1"] and after.keys() == before.keys()


def test_a_killed_synchronous_run_ends_like_an_unbroken_one(unbroken, tmp_path, runtime_name):
    expected, _ = unbroken
    workdir = tmp_path / "killed"
    process = subprocess.Popen(
        _command(workdir, runtime_name, *SYNCHRONOUS),
        env=_environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # what is done to its group is not done to ours
        stderr=subprocess.DEVNULL,
    )
    _interrupt(process, workdir, signal.SIGKILL, step=2)
    process.wait(30)
    output = _run(workdir, runtime_name, *SYNCHRONOUS)
    assert "continuing the unfinished run" in output
    assert "resumed" in [e.kind for e in read_events(workdir / "events.jsonl").records]
    assert rl_lines(workdir) == rl_lines(expected)
    jax.tree.map(np.testing.assert_array_equal, _last_state(workdir), _last_state(expected))


def _last_state(workdir):
    """Weights, moments and step as the last checkpoint holds them."""
    folder = workdir / "checkpoints" / "step_00000004" / "state"
    return jax.device_get(ocp.StandardCheckpointer().restore(folder))


def test_a_loss_that_asks_for_every_policy_of_the_past_has_them_also_after_a_resume(
    tmp_path, runtime_name
):
    """The one that wrote, the one that the step starts from, and the reference."""
    overrides = [
        "--config=configs/smoke.py:decoupled_ppo",
        "--config.algo.old_logp=generating",
        "--config.algo.loss.kl_weight=0.1",
        "--config.algo.loss.kl_estimator=k2",
        "--config.rl.fill_queue=True",
    ]
    _run(tmp_path / "run", runtime_name, *overrides)
    _run(tmp_path / "run", runtime_name, *overrides, "--resume", "--config.rl.steps=4")
    lines = rl_lines(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    # What was open when the run ended is played again by the weights of now.
    assert [line["staleness_mean"] for line in lines] == [0, 1, 0, 1]
    assert abs(lines[0]["kl"]) < 1e-5 and all(abs(line["kl"]) > 1e-5 for line in lines[1:])
    for line in lines:
        # Fresh tokens have the ratio 1, to the rounding of one program; older ones have not.
        assert (line["ratio_max"] > 1.001) == (line["staleness_max"] > 0)


def test_critics_go_on_where_they_stood(tmp_path, runtime_name):
    overrides = [
        "--config=configs/smoke.py:asyppo",
        "--config.attention_credit.credit=coupled",
        "--config.critics.warmup_steps=1",
        *SYNCHRONOUS,
    ]
    _run(tmp_path / "unbroken", runtime_name, *overrides)
    _run(tmp_path / "resumed", runtime_name, *overrides, "--config.rl.steps=2")
    _run(tmp_path / "resumed", runtime_name, *overrides, "--resume")
    lines = rl_lines(tmp_path / "resumed")
    assert lines == rl_lines(tmp_path / "unbroken")
    # While the critics warm up, they alone learn.
    assert ["loss" in line for line in lines] == [False, True, True, True]
    assert all(line["critic_grad_norm"] >= 0 for line in lines)
    states = (_last_state(tmp_path / name) for name in ("resumed", "unbroken"))
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_says_how_to_go_on(tmp_path, runtime_name, sign):
    workdir = tmp_path / "interrupted"
    process = subprocess.Popen(
        _command(workdir, runtime_name, *SYNCHRONOUS, "--config.rl.steps=500"),
        env=_environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # what is done to its group is not done to ours
        stderr=subprocess.PIPE,
        text=True,
    )
    _interrupt(process, workdir, sign, step=2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors == "interrupted: the same command continues from the last checkpoint\n"


@pytest.mark.parametrize(
    ("lost", "answer"),
    [
        ("tokenizer/tokenizer.json", "tokenizer is missing"),
        ("evaluations.json", "evaluations.json does not hold the evaluation of the warm start"),
    ],
)
def test_what_checkpoints_cannot_do_without_is_asked_for(
    unbroken, tmp_path, runtime_name, lost, answer
):
    workdir = shutil.copytree(unbroken[0], tmp_path / "copy")
    (workdir / "summary.json").unlink()
    (workdir / lost).unlink()
    result = subprocess.run(
        _command(workdir, runtime_name, *SYNCHRONOUS),
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 2
    assert answer in result.stderr and "--overwrite" in result.stderr
    assert any((workdir / "checkpoints").iterdir())


def test_a_finished_run_is_left_alone(unbroken, runtime_name):
    workdir, _ = unbroken
    before = (workdir / "metrics.jsonl").read_bytes()
    assert "is finished" in _run(workdir, runtime_name, *SYNCHRONOUS)
    assert (workdir / "metrics.jsonl").read_bytes() == before
