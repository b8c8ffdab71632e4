"""A run that was killed, with episodes of several versions, is trained again to the last bit."""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ale_jax import launch
from ale_jax.files import write_json
from ale_jax.monitor.metrics import read_metrics
from ale_jax.system import replay_command
from ale_jax.system.checks import checked_config
from ale_jax.system.replay import ReplayedStep
from ale_jax.system.replay_command import changed_config
from tests.config.smoke import smoke_with
from tests.system.whole_runs import begin, environment, interrupt, run

STEPS = 6
# Failures are punished, so that there is something to learn from a policy that knows nothing.
RECORDED = [
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.rl.alpha=2.0",
    f"--config.rl.steps={STEPS}",
    "--config.rl.record_steps",
    "--config.rl.max_uses=2",
    "--config.checkpoint.every=2",
    "--config.algo.advantage.mean=none",
    "--config.algo.advantage.failure_reward=-1.0",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a run that was killed after its second step, and continued."""
    workdir = tmp_path_factory.mktemp("recorded") / "run"
    killed = begin(workdir, "bubblewrap", *RECORDED)
    interrupt(killed, workdir, signal.SIGKILL, step=2)
    killed.communicate()
    run(workdir, "bubblewrap", *RECORDED)
    return workdir


def replay(*words):
    line = [sys.executable, "-m", "ale_jax.launch", "replay", *map(str, words)]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_the_weights_are_those_of_the_run_after_every_step(recorded):
    told = replay(recorded)
    assert told.returncode == 0, told.stdout + told.stderr
    *steps, verdict = told.stdout.splitlines()
    assert [line.split(";")[0] for line in steps[-STEPS:]] == [
        f"step {step}: weights same" for step in range(1, STEPS + 1)
    ]
    assert verdict.startswith(f"the weights after each of {STEPS} steps are those of the run")
    lines = read_metrics(recorded / "metrics.jsonl").records
    assert any(line["grad_norm"] > 0 for line in lines if line["phase"] == "rl")
    assert any(line["staleness_mean"] > 0 for line in lines if line["phase"] == "rl")


@pytest.mark.slow
def test_another_loss_is_told_what_it_makes_of_the_same_episodes(recorded, tmp_path):
    changes = "--config.algo.old_logp=sampler", "--config.algo.loss.negative_weight=0.5"  # 0.1
    told = replay(recorded, f"--out={tmp_path / 'again'}", *changes)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "the weights differ from step 1 on" in told.stdout.splitlines()[-1]
    lines = (tmp_path / "again" / "replay.jsonl").read_text().splitlines()
    again = [json.loads(line) for line in lines]
    before = [x for x in read_metrics(recorded / "metrics.jsonl").records if x["phase"] == "rl"]
    assert [x["tokens_crc32"] for x in again] == [x["tokens_crc32"] for x in before]
    assert again[0]["grad_norm"] == pytest.approx(5.0 * before[0]["grad_norm"], rel=1e-3)
    assert not any(x["same_weights"] for x in again)


@pytest.mark.slow
def test_weights_that_differ_are_an_error_that_names_the_step(recorded, tmp_path):
    schedule = recorded / "schedule.jsonl"
    whole = schedule.read_text()
    third = json.loads(whole.splitlines()[2])["weights"]
    schedule.write_text(whole.replace(third, "0" * len(third)))
    told = replay(recorded)
    schedule.write_text(whole)
    assert told.returncode == 2
    assert "step 3 is the first whose weights differ" in told.stdout
    assert "step 4: weights same" in told.stdout


def test_a_mistake_does_not_leave_the_folder_of_the_replay_behind(tmp_path, capsys):
    write_json(tmp_path / "run" / "config.json", checked_config(smoke_with({})).to_json())
    words = str(tmp_path / "run"), f"--out={tmp_path / 'again'}"
    assert launch.main(["ale-jax", "replay", *words]) == 2
    assert "has no steps: only runs with rl.record_steps do" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_weights_that_the_run_does_not_tell_are_not_called_the_same(tmp_path, monkeypatch, capsys):
    write_json(tmp_path / "config.json", checked_config(smoke_with({})).to_json())

    def replayed(*recorded):
        def steps(config, run, on_step):
            for number, digest in enumerate(recorded, 1):
                report = SimpleNamespace(cursor=SimpleNamespace(step=number), weights="aa")
                on_step(ReplayedStep(report, digest))

        monkeypatch.setattr(replay_command, "replay", steps)
        monkeypatch.setattr(replay_command, "step_metrics", lambda report: {})
        code = launch.main(["ale-jax", "replay", str(tmp_path)])
        told = capsys.readouterr()
        return code, told.out.splitlines()[-1], told.err

    code, verdict, err = replayed("", "")
    assert code == 2 and "cannot be told" in verdict
    assert "tells the weights after none of 2 steps: nothing was compared" in err
    code, verdict, _ = replayed("aa", "")
    assert code == 0 and verdict.startswith("the weights after each of 1 steps are those")
    assert verdict.endswith("(after 1 others unknown)")


def refusal(changes, **before):
    config = checked_config(smoke_with(before))
    with pytest.raises(ValueError) as error:
        changed_config(config, smoke_with(before | changes), changes)
    return str(error.value)


def test_other_episodes_are_not_to_be_had():
    said = refusal({"rl.alpha": 3.0})
    assert said.startswith("rl.alpha cannot be changed: the episodes are those of the run")


def test_weights_that_the_replay_does_not_make_are_not_asked():
    said = refusal({"learn.epochs": 2}, **{"algo.old_logp": "generating"})
    assert "add --config.algo.old_logp=sampler" in said


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"resampling.scheme": "parallel", "worlds.tasks_per_family": 1},
            "rl.record_steps .* resampling.scheme 'parallel'",
        ),
        ({"teacher.endpoint": "http://127.0.0.1:1/v1"}, "rl.record_steps .* teacher.endpoint"),
    ],
)
def test_a_run_does_not_record_half_of_what_it_learns_from(changes, named):
    with pytest.raises(ValueError, match=named):
        checked_config(smoke_with({"rl.record_steps": True} | changes))


def test_an_interrupted_replay_starts_over(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(replay_command, "run_replay", interrupted)
    assert launch.main(["ale-jax", "replay", "runs/X"]) == 130
    assert capsys.readouterr().err == "interrupted: a replay starts over, with another --out\n"


@pytest.mark.heavy
def test_what_is_no_recorded_run_is_refused(tmp_path):
    told = replay(tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"error: {tmp_path} holds no run: check the folder\n"
