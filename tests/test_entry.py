"""One line of Python trains a run, and another plays its tasks with its newest policy."""

import pytest

import ale_jax
from ale_jax.config.run import RunConfig
from ale_jax.entry import as_config
from ale_jax.errors import EXIT_FAILED
from ale_jax.launch import main
from ale_jax.monitor.evaluations import EVALUATIONS_FILE, read_evaluations

COUNTDOWN = {
    "worlds.train": ({"world": "countdown", "families": ("countdown3",)},),
    "worlds.held_out": (),
    "eval.held_out_tasks": 0,
    "learn.microbatch_rows": 8,
}


def test_a_config_is_a_name_a_record_or_a_mapping():
    named = as_config("smoke", {"rl.steps": 7, "rl.alpha": 0.5})
    assert isinstance(named, RunConfig) and (named.name, named.rl.steps) == ("smoke", 7)
    assert as_config(named) == as_config(named.to_json()) == named
    assert as_config(named, {"rl.steps": 2}).rl.steps == 2


@pytest.mark.parametrize(
    ("config", "overrides", "answer"),
    [
        ("smoek", {}, "there is no config smoek: choose one of"),
        ("smoke", {"rl.stesp": 1}, "config.rl.stesp is unknown: did you mean config.rl.steps?"),
        ("smoke", {"rl.steps": 1.5}, "config.rl.steps is 1.5 .float.: expected int"),
        ({"name": "x"}, {}, "is missing: set it in the config file"),
    ],
)
def test_a_mistake_is_refused_before_a_folder_is_made(config, overrides, answer, tmp_path):
    with pytest.raises(ValueError, match=answer):
        ale_jax.train(config, tmp_path / "run", overrides)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_cannot_play_is_refused_before_a_folder_is_made(tmp_path):
    line = ["launch", "--config=smoke", f"--workdir={tmp_path / 'run'}", "--ray-address=auto"]
    assert main(line) == EXIT_FAILED
    with pytest.raises(ValueError, match="ray-address=auto has no use"):
        ale_jax.train("smoke", tmp_path / "run", ray_address="auto")
    assert list(tmp_path.iterdir()) == []


def test_the_package_has_no_other_lazy_name():
    with pytest.raises(AttributeError, match="has no attribute 'tarin'"):
        _ = ale_jax.tarin


@pytest.mark.slow
def test_a_run_is_trained_and_evaluated_once_more(tmp_path):
    folder = ale_jax.train("smoke", tmp_path / "run", COUNTDOWN)
    recorded = (folder / EVALUATIONS_FILE).read_text()
    files = sorted(path.name for path in folder.iterdir())
    evaluation = ale_jax.evaluate("smoke", folder, COUNTDOWN)
    assert evaluation.step == 2 and evaluation.name == "newest"
    last = read_evaluations(folder / EVALUATIONS_FILE)[-1]
    assert last.step == 2 and last.judged == evaluation.judged
    assert (folder / EVALUATIONS_FILE).read_text() == recorded
    assert sorted(path.name for path in folder.iterdir()) == files
