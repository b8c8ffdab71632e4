"""ale-jax new: a config whose sizes fit the devices, and which is a config like others."""

import ast

import pytest
from transformers import Qwen3Config, Qwen3MoeConfig

from ale_jax.command_line import read_config
from ale_jax.config.hardware import CHIPS
from ale_jax.launch import main
from ale_jax.system import new_config
from ale_jax.system.checks import resolved_config
from ale_jax.system.new_config import fitted
from ale_jax.system.plan import GIB, make_plan
from tests.system.configs import smoke_config

pytestmark = pytest.mark.heavy  # plans are of traced programs

SMALL = Qwen3Config(
    hidden_size=1024,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=151_936,
    tie_word_embeddings=True,
)
LARGE = Qwen3MoeConfig(
    hidden_size=2048,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    intermediate_size=6144,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    vocab_size=151_936,
)


@pytest.fixture
def new(tmp_path, capsys):
    """Calls the command for a model of this configuration; returns the config that it printed."""

    def new(model, devices):
        model.save_pretrained(tmp_path)
        line = ["ale-jax", "new", "--config=smollm2_135m", f"--weights={tmp_path}"]
        code = main([*line, f"--devices={devices}"])
        out, err = capsys.readouterr()
        if code:
            raise ValueError(err)
        file = tmp_path / "mine.py"
        file.write_text(out)
        return resolved_config(read_config(str(file), []))

    return new


def test_a_small_model_is_copied_to_all_devices(new):
    config = new(SMALL, "8xh100")
    assert (config.hardware.chip, config.hardware.devices) == ("h100", 8)
    assert (config.mesh.fsdp, config.mesh.expert, config.mesh.tensor) == (1, 1, 1)
    assert config.learn.microbatch_rows % 8 == config.engine.pages % 8 == 0
    assert config.model.num_layers == 28 and config.tokenizer.vocab_size == 151_936
    assert config.rl.steps == 60, "as the config that it is like"
    assert make_plan(config).total < CHIPS["h100"] * GIB


def test_a_large_one_is_divided_over_them(new):
    config = new(LARGE, "16xh200")
    assert config.mesh.fsdp * config.mesh.expert * config.mesh.tensor == 16
    assert config.learn.microbatch_rows == 32, "16 x 8 episodes of 1,024 tokens fill no more"
    assert make_plan(config).total < CHIPS["h200"] * GIB


def test_names_with_quotes_and_escapes_do_not_end_the_description():
    name = 'a"""\nimport os  # \\N'
    assert isinstance(ast.literal_eval(f'"""{new_config._in_docstring(name)}"""'), str)


def test_engines_with_devices_for_themselves_leave_the_others_to_the_mesh():
    config, plan = fitted(
        smoke_config(
            hardware={"chip": "h100", "devices": 8},
            rollout={"engine_devices": 3},
            engine={"max_sequences": 7, "pages": 400},
        )
    )
    assert [side.devices for side in plan.sides] == [5, 3]
    assert config.learn.microbatch_rows % 5 == 0
    assert config.engine.max_sequences % 3 == config.engine.pages % 3 == 0


@pytest.mark.parametrize("number", [1, 3], ids=["one", "three, which divide nothing"])
def test_what_fits_nowhere_is_refused_with_what_takes_most(new, number):
    with pytest.raises(ValueError, match=r"GiB of each h100, which has 75.0; the largest part"):
        new(LARGE, f"{number}xh100")


@pytest.mark.parametrize("devices", ["8", "8xa100", "0xh100", "h100"])
def test_devices_that_are_not_known_are_refused(new, devices):
    with pytest.raises(ValueError, match=f"--devices={devices} must be auto, or a number and a"):
        new(SMALL, devices)
