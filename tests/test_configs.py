"""Every config file is a whole, valid experiment whose leaves can be overridden."""

import dataclasses
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ale_jax import configs
from ale_jax.config.fields import flat
from ale_jax.config.run import RunConfig
from ale_jax.config.worlds import Domain, WorldsConfig
from ale_jax.configs import algorithms
from ale_jax.system.checks import checked_config, resolved_config
from ale_jax.system.plan import GIB, make_plan
from tests.rows import each_row

FOLDER = Path(configs.__file__).parent
NAMES = sorted(p.stem for p in FOLDER.glob("*.py") if "def get_config" in p.read_text())
BRIDGES = sorted(p.stem for p in FOLDER.glob("bridges/[a-z]*.py"))
EXPERIMENTS = sorted(f"experiments.{p.stem}" for p in FOLDER.glob("experiments/[a-z]*.py"))
OF_WEIGHTS = ("one_gpu", "smoke_weights", "smollm2_two_cores")  # which tell the shape
PLANNED = [name for name in NAMES if not name.startswith(("quickstart", "smoke", *OF_WEIGHTS))]


@each_row("name", NAMES)
def test_a_config_file_is_valid_and_its_docstring_is_a_lab_record(name):
    module = importlib.import_module(f"ale_jax.configs.{name}")
    config = checked_config(module.get_config().to_dict())
    assert config.name == name
    assert checked_config(module.get_config("grpo").to_dict()).algo.name == "grpo"
    question, command, *rest = module.__doc__.splitlines()
    assert "?" in question and "Expect:" in question
    assert command.startswith(f"python -m ale_jax.launch --config=configs/{name}.py --")
    assert "--workdir=" in command
    assert "Hardware:" in "\n".join(rest)


SCREEN = 50  # lines


def _built_on(module):
    """The modules that a config's settings come from, apart from the algorithms."""
    imported = filter(inspect.ismodule, vars(module).values())
    near = {m for m in imported if m.__name__.startswith("ale_jax.configs.")} - {algorithms}
    return near.union(*map(_built_on, near))


@each_row("name", NAMES + EXPERIMENTS + [f"bridges.{name}" for name in BRIDGES])
def test_what_a_config_sets_is_on_one_screen_and_in_at_most_one_other_file(name):
    module = importlib.import_module(f"ale_jax.configs.{name}")
    assert len(inspect.getsourcelines(module.get_config)[0]) <= SCREEN
    assert len(_built_on(module)) <= 1


@each_row("name", PLANNED)
def test_the_algorithms_of_real_models_weigh_failures_as_their_papers_do(name):
    module = importlib.import_module(f"ale_jax.configs.{name}")
    assert module.get_config().algo.loss.negative_weight == 1.0


@pytest.mark.heavy
@each_row("name", PLANNED)
def test_a_config_fits_the_chips_that_it_names_and_says_how_much_it_takes(name):
    module = importlib.import_module(f"ale_jax.configs.{name}")
    plan = make_plan(checked_config(module.get_config().to_dict()))
    plan.require_fit()
    assert f"`plan`: {plan.total / GIB:.1f} GiB of each device." in module.__doc__


QWEN3 = {
    "model_type": "qwen3",
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "vocab_size": 151_936,
}


@pytest.mark.heavy
@pytest.mark.parametrize(("model", "width"), [("Qwen3-0.6B", 1024), ("1.7B", 2048)])
def test_two_sizes_of_qwen3_fit_one_gpu(model, width, tmp_path):
    sizes = {"hidden_size": width, "intermediate_size": 3 * width}
    (tmp_path / "config.json").write_text(json.dumps(QWEN3 | sizes))
    module = importlib.import_module("ale_jax.configs.one_gpu")
    plan = make_plan(resolved_config(module.get_config().to_dict() | {"weights": str(tmp_path)}))
    plan.require_fit()
    assert f"{plan.total / GIB:.1f} GiB with {model}" in module.__doc__


ON_TWO_CORES = """
import importlib
from ale_jax.system.checks import check_devices, checked_config
for name in {names}:
    module = importlib.import_module("ale_jax.configs." + name)
    check_devices(checked_config(module.get_config().to_dict()))
"""


@pytest.mark.heavy
def test_the_other_configs_fit_two_cores():
    # Two CPU cores, which are one device, and not the eight that the tests make of them.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    code = ON_TWO_CORES.format(names=[name for name in NAMES if name not in (*PLANNED, "one_gpu")])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@each_row("name", sorted(algorithms.PRESETS))
def test_an_algorithm_is_valid_and_differs_from_the_quickstart_in_nothing_else(name):
    mine, rivals = (
        flat(importlib.import_module("ale_jax.configs.quickstart").get_config(n).to_dict())
        for n in ("ipa", name)
    )
    assert rivals["algo.name"] == name
    own = ("algo.", "critics.")
    other = {n for n in mine if mine[n] != rivals[n] and not n.startswith(own)}
    other -= {f"rl.{field}" for field in algorithms.rl(name)}
    assert other == (set() if name == "ipa" else {"name"})
    checked_config(importlib.import_module("ale_jax.configs.smoke").get_config(name).to_dict())


def test_an_unknown_algorithm_is_answered_with_the_choices():
    with pytest.raises(ValueError, match=r"algorithm 'pg' is unknown: choose one of ipa, ipa_"):
        importlib.import_module("ale_jax.configs.quickstart").get_config("pg")


def test_the_defaults_make_a_run_of_whatever_families_are_named():
    with pytest.raises(ValueError, match=r"train is empty: .* there are bfcl, corridor, countdown"):
        checked_config(RunConfig().to_json())
    named = dataclasses.replace(RunConfig(), worlds=WorldsConfig((Domain("shell", ("count",)),)))
    assert checked_config(named.to_json()) == named
