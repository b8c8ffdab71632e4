"""The experiments: their figures by hand, their arms against the configs, and what is run when."""

import dataclasses
import functools
import importlib
import json
import math
import operator
import sys

import pytest

from ale_jax.config.run import RunConfig
from ale_jax.monitor.evaluations import wilson_interval
from ale_jax.system.checks import checked_config
from ale_jax.worlds.schedule import Schedule
from benchmarks.experiments import __main__ as experiments
from benchmarks.experiments.catalogue import EXPERIMENTS
from benchmarks.experiments.figures import (
    RunFigures,
    count_spikes,
    curve,
    has_collapsed,
    read_run,
    summarize,
)
from benchmarks.experiments.settings import settings, shared
from tests.benchmarks.finished_run import write_run
from tests.rows import each_row

pytestmark = pytest.mark.slow

CONFIGS = ("shell", "vault", "countdown", "sft", "corridor")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_valid_and_its_docstring_is_a_lab_record(name):
    module = importlib.import_module(f"ale_jax.configs.experiments.{name}")
    assert checked_config(module.get_config().to_dict()).name == name
    question, command, *rest = module.__doc__.splitlines()
    assert "?" in question and "Expect:" in question
    path = f"configs/experiments/{name}.py"
    assert command == f"python -m ale_jax.launch --config={path} --workdir=runs/{name}"
    assert "Hardware:" in "\n".join(rest)


def test_no_vault_is_demonstrated():
    config = checked_config(
        importlib.import_module("ale_jax.configs.experiments.vault").get_config().to_dict()
    )
    schedule = Schedule.of(config)
    assert schedule.train_families == ("vault",)
    assert schedule.families.of(*schedule.demonstrated) == ("trek",)


@each_row(
    "variant, family, algorithm, turns",
    [
        ("late", "corridor-late3", "ipa", 21),
        ("early", "corridor-early3", "ipa", 21),
        ("grpo", "corridor-late3", "grpo", 21),
        ("late24", "corridor-depth24-late3", "ipa", 29),
        ("early48_dr_grpo", "corridor-depth48-early3", "dr_grpo", 53),
    ],
)
def test_corridors_are_chosen_by_place_depth_and_algorithm(variant, family, algorithm, turns):
    module = importlib.import_module("ale_jax.configs.experiments.corridor")
    config = checked_config(module.get_config(variant).to_dict())
    assert Schedule.of(config).train_families == (family,)
    assert (config.algo.name, config.agent.turns) == (algorithm, turns)
    assert config.engine.max_sequence_length >= 32 * turns


@each_row(
    "variant, reason",
    [
        ("latest", "latest"),
        ("early_x", "x"),
        ("late-24", "variant 'late-24' is unknown: choose late, early"),
        ("late7", "depth 7 must be from 8 to 48"),
    ],
)
def test_a_corridor_that_cannot_be_is_refused(variant, reason):
    module = importlib.import_module("ale_jax.configs.experiments.corridor")
    with pytest.raises(ValueError, match=reason):
        checked_config(module.get_config(variant).to_dict())


@pytest.mark.parametrize(
    ("norms", "spikes"),
    [
        ([1.0] * 5 + [5.0, 5.1], 1),  # 5 times the median is no spike yet, more is
        ([100.0, 1.0, 1.0, 1.0], 0),  # too early to tell
        ([1.0] * 5 + [10.0] * 20, 5),  # until as many 10s as 1s stand before it: median 5.5
        ([], 0),
    ],
)
def test_spikes_by_hand(norms, spikes):
    assert count_spikes(norms) == spikes


def test_a_collapse_is_less_than_half_of_the_best():
    assert has_collapsed([0.8] * 10 + [0.39] * 10)
    assert not has_collapsed([0.8] * 10 + [0.41] * 10)
    assert not has_collapsed([0.1] * 10 + [0.8] * 10)
    assert not has_collapsed([0.8] * 5 + [0.0] * 4)  # too short


def test_the_curve_has_means_of_five_steps():
    steps = [{"episodes": 8 * (i + 1), "success": i / 10} for i in range(7)]
    assert curve(steps, "success") == ((40, pytest.approx(0.2)), (56, pytest.approx(0.55)))


def test_a_run_is_read(tmp_path):
    write_run(tmp_path / "run", 3, 30, norms=(1.0, None, 3.0, 2.0, math.inf))
    run = read_run(tmp_path / "run")
    assert (run.seed, run.warm_start, run.final, run.final_tasks) == (3, 0.25, 0.75, 40)
    assert run.final_interval == wilson_interval(30, 40)
    assert (run.grad_norm_median, run.grad_norm_max, run.spikes) == (2.0, 3.0, 0)
    assert run.collapsed  # a gradient was not finite
    assert run.curve == ((20, 0.5),)
    assert run.mean_staleness == pytest.approx(0.3)  # of 0.1 to 0.5
    assert run.starts == ()
    assert run.made_with == ("jax 1.0", "jax 1.1")  # begun twice on one machine, then on another


def test_where_episodes_start_is_read_and_survives_a_file(tmp_path):
    write_run(tmp_path / "run", 3, 30, starts=(11.0, 11.0, 10.0, 9.0, 4.0, 2.5))
    run = read_run(tmp_path / "run")
    assert run.starts == ((20, 9.0), (24, 2.5))
    assert RunFigures.from_json(json.loads(json.dumps(dataclasses.asdict(run)))) == run


def test_mean_and_spread_by_hand(tmp_path):
    for seed, solved in ((1, 20), (0, 24), (2, 28)):
        write_run(tmp_path / str(seed), seed, solved)
    arm = summarize([read_run(tmp_path / str(seed)) for seed in (1, 0, 2)])
    assert arm["mean"] == pytest.approx(0.6)
    assert arm["std"] == pytest.approx(0.1)  # of 0.5, 0.6, 0.7, with n - 1
    assert arm["standard_error"] == pytest.approx(0.1 / math.sqrt(3))
    assert [run["seed"] for run in arm["runs"]] == [0, 1, 2]


# In place of Python: does what the launcher would leave behind, and writes down what it was told.
FAKE = """#!{python}
import importlib, json, pathlib, shutil, sys
sys.path.insert(0, ".")
from ale_jax.config.fields import flat
words = dict(word.removeprefix("--").split("=", 1) for word in sys.argv if word.startswith("--"))
with open("{log}", "a") as log:
    print(json.dumps(words), file=log)
if sys.argv[3] == "export":
    pathlib.Path(words["out"]).mkdir()
    (pathlib.Path(words["out"]) / "config.json").write_text('{{"vocab_size": 321}}')
elif words["config"].endswith(":topr"):
    raise SystemExit(2)
else:
    shutil.copytree("{finished}", words["workdir"])
    summary = pathlib.Path(words["workdir"]) / "summary.json"
    values = json.loads(summary.read_text()) | {{"seed": int(words["config.seed"])}}
    summary.write_text(json.dumps(values))
    path, _, algorithm = words["config"].partition(":")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    config = flat(module.get_config(*filter(None, [algorithm])).to_dict())
    for name, value in words.items():
        if (field := name.removeprefix("config.")) in config:
            config[field] = type(config[field])(value)
    (pathlib.Path(words["workdir"]) / "config.json").write_text(json.dumps(config))
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What the launcher was told, call by call; runs and results go below `tmp_path`."""
    log, launcher, finished = tmp_path / "log", tmp_path / "python", tmp_path / "finished"
    write_run(finished, 0, 20)
    launcher.write_text(FAKE.format(python=sys.executable, log=log, finished=finished))
    launcher.chmod(0o755)
    monkeypatch.setattr(experiments, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "executable", str(launcher))

    def read():
        return [json.loads(line) for line in log.read_text().splitlines()]

    return read


def test_arms_of_a_seed_share_a_warm_start_and_what_is_done_is_not_done_again(tmp_path, told):
    folder = tmp_path / "runs"
    arguments = ["algorithms", "--arms=ipa,topr,gspo", f"--runs={folder}"]
    assert experiments.main([*arguments, "--seeds=4"]) == 1  # an arm broke off, the others did not
    warm, export, ipa, topr, gspo = told()
    assert warm["config"] == export["config"] == "configs/experiments/shell.py"
    assert warm["config.rl.steps"] == "0" and "out" in export
    assert [run["config"].partition(":")[2] for run in (ipa, topr, gspo)] == ["ipa", "topr", "gspo"]
    for run in (ipa, topr, gspo):
        assert run["config.weights"] == export["out"] and run["config.seed"] == "4"
        assert run["config.tokenizer.vocab_size"] == "321"
        assert run["config.warm_start.max_steps"] == "0"
    assert "| gspo | 50.0 |" in (tmp_path / "results" / "algorithms.md").read_text()
    found = json.loads((tmp_path / "results" / "algorithms.json").read_text())
    assert {name: arm["mean"] for name, arm in found["arms"].items()} == {"ipa": 0.5, "gspo": 0.5}
    assert experiments.main(["algorithms", "--arms=ipa", f"--runs={folder}", "--seeds=4,5"]) == 0
    assert [run["config.seed"] for run in told()[5:]] == ["5", "5", "5"]  # warm, export, ipa
    found = json.loads((tmp_path / "results" / "algorithms.json").read_text())
    assert [run["seed"] for run in found["arms"]["ipa"]["runs"]] == [4, 5]
    assert found["arms"].keys() == {"ipa", "gspo"}  # what an earlier call found is kept


def test_what_was_recorded_elsewhere_is_kept_and_not_made_again(tmp_path, told):
    results = tmp_path / "results" / "algorithms.json"
    for folder, seed in (("here", 4), ("there", 5)):
        words = ["algorithms", "--arms=ipa,gspo", f"--runs={tmp_path / folder}", f"--seeds={seed}"]
        assert experiments.main(words) == 0
    found = json.loads(results.read_text())
    assert [run["seed"] for run in found["arms"]["ipa"]["runs"]] == [4, 5]
    calls = len(told())
    words = ["algorithms", "--arms=ipa,gspo", f"--runs={tmp_path / 'third'}", "--seeds=4,5"]
    assert experiments.main(words) == 0
    assert len(told()) == calls and json.loads(results.read_text()) == found


def _another_config(arms):
    assert arms["gspo"]["config"]["algo.loss.level"] == "sequence"  # its own
    arms["gspo"]["config"]["algo.loss.level"] = "token"


def _another_name(arms):
    arms["former"] = arms.pop("gspo")


@pytest.mark.parametrize(
    "change, message",
    [
        (_another_config, "gspo had another config (algo.loss.level 'token' -> 'sequence')"),
        (_another_name, "there is no arm former now"),
    ],
)
def test_results_of_other_arms_are_neither_taken_nor_lost(tmp_path, told, capsys, change, message):
    words = ["algorithms", "--arms=ipa,gspo", f"--runs={tmp_path / 'runs'}", "--seeds=4"]
    assert experiments.main(words) == 0
    results, calls = tmp_path / "results" / "algorithms.json", len(told())
    found = json.loads(results.read_text())
    change(found["arms"])
    results.write_text(json.dumps(found))
    with pytest.raises(SystemExit):
        experiments.main([*words[:2], f"--runs={tmp_path / 'other'}", "--seeds=5"])
    assert f"{message}: move it away" in capsys.readouterr().err
    assert len(told()) == calls and json.loads(results.read_text()) == found


def test_a_finished_run_of_another_config_is_neither_taken_nor_touched(tmp_path, told, capsys):
    words = ["algorithms", "--arms=ipa", f"--runs={tmp_path / 'runs'}", "--seeds=4"]
    assert experiments.main(words) == 0
    config = tmp_path / "runs" / "algorithms" / "ipa_4" / "config.json"
    config.write_text(config.read_text().replace('"algo.gamma": 0.95', '"algo.gamma": 0.5'))
    (tmp_path / "results" / "algorithms.json").unlink()
    calls = len(told())
    assert experiments.main(words) == 1 and len(told()) == calls
    told_user = capsys.readouterr()
    assert "has another config (algo.gamma 0.5 -> 0.95): move it away" in told_user.err
    assert json.loads(told_user.out.splitlines()[-1])["arms"] == {}


def test_quick_makes_one_short_run_and_no_result(tmp_path, told, capsys):
    assert experiments.main(["late", "--quick", f"--runs={tmp_path / 'runs'}"]) == 0
    warm, _, run = told()
    assert (warm["config.rl.steps"], run["config.rl.steps"]) == ("0", "2")
    assert run["config.eval.tasks"] == "6"  # of 960 that the arm has
    assert run["workdir"] == str(tmp_path / "runs" / "quick" / "late" / "ipa_0")
    assert not (tmp_path / "results").exists()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["experiment"] == "late"


@pytest.mark.parametrize(
    "words", [["nope"], ["attention_credit", "--arms=nope"], ["attention_credit", "--seeds=a"]]
)
def test_what_is_not_there_is_refused_before_anything_runs(words):
    with pytest.raises(SystemExit):
        experiments.main(words)


def test_every_experiment_has_a_question_and_two_arms_at_least():
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name and experiment.question
        assert len(experiment.arms) >= 2 and {experiment.config, experiment.start} <= set(CONFIGS)


def arms_that_can_be_built():
    """All whose overrides speak of sections that a config has."""
    sections = {field.name for field in dataclasses.fields(RunConfig)}
    for experiment in EXPERIMENTS.values():
        for arm in experiment.arms:
            if {name.partition(".")[0] for name in arm.overrides} <= sections:
                yield pytest.param(experiment, arm, id=f"{experiment.name}-{arm.name}")


# The fields in which arms may differ, or the sections; all else is equal.
COMPARED = {
    "algorithms": ("algo.", "critics."),
    "failures": ("algo.", "critics."),
    "ablation": ("algo.gamma", "algo.loss.level", "algo.mismatch.", "resampling."),
    "long_horizon": ("resampling.",),
    "vault": ("resampling.",),
    "starts": ("resampling.",),
    "attention_credit": ("attention_credit.credit",),
    "staleness": ("algo.", "rl.alpha"),
    "late": ("algo.", "critics."),
    "early": ("algo.", "critics."),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_arms_differ_in_what_is_compared_alone(name):
    experiment = EXPERIMENTS[name]
    arms = [settings(experiment, arm) for arm in experiment.arms]
    common = shared(arms)
    assert all(field.startswith(COMPARED[name]) for arm in arms for field in arm.keys() - common)
    assert "algo.loss.negative_weight" in common  # it decides more than the algorithm does


@pytest.mark.parametrize(("experiment", "arm"), list(arms_that_can_be_built()))
def test_an_arm_is_a_valid_config(experiment, arm):
    module = importlib.import_module(f"ale_jax.configs.experiments.{experiment.config}")
    values = module.get_config(arm.algorithm).to_dict()
    for name, value in arm.overrides.items():
        *path, leaf = name.split(".")
        section = functools.reduce(operator.getitem, path, values)
        assert type(value) is type(section[leaf]), name
        section[leaf] = value
    name = checked_config(values).algo.name
    assert arm.algorithm in (name, f"{experiment.name}_{name}")  # of the place, in corridors
