"""Where a run starts: anew, or from its newest checkpoint with all that belongs to it."""

import shutil
import time

import jax
import numpy as np
import pytest

from ale_jax import launch
from ale_jax.config.worlds import Domain
from ale_jax.monitor.evaluations import read_evaluations, read_summary
from ale_jax.monitor.events import read_events
from ale_jax.system import controller
from ale_jax.system.hosts.commands import Alone
from ale_jax.system.rollouts import opening
from ale_jax.system.stopping import StopSignals
from ale_jax.system.workdir import Workdir
from tests.system.configs import smoke_config
from tests.system.untimed import rl_lines
from tests.system.whole_runs import (
    SYNCHRONOUS,
    broken_off,
    command,
    last_state,
    run_here,
)

pytestmark = pytest.mark.heavy

ARITHMETIC = [
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.eval.every=1",
    "--config.checkpoint.every=9",
    "--config.algo.loss.measure_kl=True",
]
WITH_CRITICS = [
    "--config=configs/smoke.py:asyppo",
    "--config.attention_credit.credit=coupled",
    "--config.critics.warmup_steps=1",
    "--config.checkpoint.keep=2",
    *SYNCHRONOUS,
    "--config.rl.steps=2",
]


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    """A run of two steps on a machine without any sandbox runtime; what it printed."""
    path = tmp_path_factory.mktemp("arithmetic")
    nothing = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "PATH": str(path)}
    return path / "run", run_here(path / "run", "auto", *ARITHMETIC, **nothing)


def test_worlds_without_sandboxes_ask_for_no_runtime(arithmetic):
    workdir, said = arithmetic
    assert "sandboxes: none, as no task needs one" in said
    assert read_summary(workdir / "summary.json").episodes == 2 * 2 * 2


def test_the_last_line_of_a_run_is_its_result(arithmetic):
    _, said = arithmetic
    *_, result, untrained = said.rstrip().splitlines()  # and no warning of Ray's
    assert result.endswith(" minutes") and "nothing was trained" in untrained


class RayStarts(Exception):
    """In place of Ray's start, once the watchdog has seen that the run stands still there."""


@pytest.fixture(scope="module")
def stuck_at_ray(tmp_path_factory):
    """A run's folder, and the checkpoints that were complete when Ray was to start."""
    path = tmp_path_factory.mktemp("stuck") / "run"
    complete = []

    def ray_cluster(*_):
        complete.extend(file.parent.name for file in path.rglob("manifest.json"))
        deadline = time.monotonic() + 60
        while "in ray_cluster" not in stacks_of(path):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        raise RayStarts

    worlds = {"train": (Domain("countdown", ("countdown3",)),), "held_out": ()}
    deadlines = {"watchdog_seconds": 0.1}
    config = smoke_config(worlds=worlds, eval={"held_out_tasks": 0}, deadlines=deadlines)
    with (
        pytest.MonkeyPatch.context() as patch,
        Workdir.claim(path, config) as workdir,
        StopSignals(grace_seconds=60) as stop,
        pytest.raises(RayStarts),
    ):
        patch.setattr(opening, "_backend", ray_cluster)
        controller.run(config, workdir, stop, Alone())
    return path, complete


def stacks_of(path):
    return "".join(file.read_text() for file in path.glob("stacks.txt"))


def test_ray_starts_once_the_first_checkpoint_is_complete(stuck_at_ray):
    _, complete = stuck_at_ray
    assert complete == ["step_00000000"]


def test_a_run_that_stands_still_is_described_with_its_stacks(stuck_at_ray):
    path, _ = stuck_at_ray
    said = [e.detail for e in read_events(path / "events.jsonl").records if e.kind == "stalled"]
    assert said and all(detail in stacks_of(path) for detail in said)


def test_an_evaluation_that_is_due_where_a_run_goes_on_is_made_there(arithmetic, tmp_path):
    workdir = shutil.copytree(arithmetic[0], tmp_path / "run")
    run_here(workdir, "auto", *ARITHMETIC, "--config.rl.steps=3", "--resume")
    made = {e.name: e.step for e in read_evaluations(workdir / "evaluations.json")}
    assert made == {"warm_start": 0, "step_1": 1, "step_2": 2, "final": 3}
    # Nothing had a gradient, so that this policy is the reference, which is still there.
    assert [abs(line["kl"]) < 1e-5 for line in rl_lines(workdir)] == [True] * 3
    events = read_events(workdir / "events.jsonl").records
    first, second = (event.detail for event in events if event.kind == "started")
    assert first == second and f"jax {jax.__version__}, jaxlib " in first and first.endswith("cpu")


def test_a_step_that_is_made_anew_is_evaluated_anew(arithmetic, tmp_path):
    workdir = broken_off(arithmetic[0], tmp_path / "run", after=0)  # before its only checkpoint
    path = workdir / "evaluations.json"
    before = {e.name: e.seconds for e in read_evaluations(path)}
    run_here(workdir, "auto", *ARITHMETIC)
    after = {e.name: e.seconds for e in read_evaluations(path)}
    assert after["step_1"] != before["step_1"] and after.keys() == before.keys()


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
    run_here(tmp_path / "run", runtime_name, *overrides)
    run_here(tmp_path / "run", runtime_name, *overrides, "--resume", "--config.rl.steps=4")
    lines = rl_lines(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    # What was open when the run ended is played again by the weights of now.
    assert [line["staleness_mean"] for line in lines] == [0, 1, 0, 1]
    # The first two steps' tokens are the reference's own, and the others those of version 2.
    assert [abs(line["kl"]) > 1e-5 for line in lines] == [False, False, True, True]
    for line in lines:
        # Fresh tokens have the ratio 1, to the rounding of one program; older ones have not.
        assert (line["ratio_max"] > 1.001) == (line["staleness_max"] > 0)


def test_critics_go_on_where_they_stood(tmp_path, runtime_name):
    unbroken = tmp_path / "unbroken"
    run_here(unbroken, runtime_name, *WITH_CRITICS)
    workdir = broken_off(unbroken, tmp_path / "resumed", after=1)
    run_here(workdir, runtime_name, *WITH_CRITICS)
    assert "resumed" in [e.kind for e in read_events(workdir / "events.jsonl").records]
    lines = rl_lines(workdir)
    assert lines == rl_lines(unbroken)
    # While the critics warm up, they alone learn.
    assert ["loss" in line for line in lines] == [False, True]
    assert all(line["critic_grad_norm"] >= 0 for line in lines)
    states = (last_state(path, step=2) for path in (workdir, unbroken))
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.parametrize(
    ("lost", "answer"),
    [
        ("tokenizer/tokenizer.json", "tokenizer is missing"),
        ("evaluations.json", "evaluations.json does not hold the evaluation of the warm start"),
    ],
)
def test_what_checkpoints_cannot_do_without_is_asked_for(
    arithmetic, tmp_path, capsys, lost, answer
):
    workdir = shutil.copytree(arithmetic[0], tmp_path / "copy")
    (workdir / "summary.json").unlink()
    (workdir / lost).unlink()
    _, _, *line = command(workdir, "auto", *ARITHMETIC)
    assert launch.main(line) == 2
    told = capsys.readouterr().err
    assert answer in told and "--overwrite" in told
    assert any((workdir / "checkpoints").iterdir())
