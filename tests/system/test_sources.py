"""The weights of a config bring their shape, and what the config says of it must hold."""

import dataclasses
import json
import shutil

import pytest

from ale_jax.config.model import ModelConfig
from ale_jax.config.run import RunConfig
from ale_jax.configs import smoke_weights
from ale_jax.launch import main
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import open_checkpoint
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.run_files import CHECKPOINTS_DIR
from ale_jax.system.checks import check_devices, config_with_weights, resolved_config
from ale_jax.system.workdir import Workdir
from benchmarks.families.tiny import make_model
from tests.model.shapes import LLAMA, MIXED, MOE, QWEN2, changed
from tests.model.weights.families import random_params
from tests.model.weights.gguf_files import write_gguf

TOLD = [{"role": "user", "content": "Reach 24 with 3, 5 and 7, each used once."}]
COMMIT = "1" * 40


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer(train_bpe(TOLD * 20, 320))


@pytest.fixture
def saved(tokenizer, tmp_path):
    """Writes a model and its tokenizer; returns where, and its shape."""

    def save(shape, name="model"):
        shape = changed(shape, vocab_size=tokenizer.vocab_size + 7, max_positions=2048)
        path = tmp_path / name
        if path.suffix:
            write_gguf(path, "qwen2", random_params(shape), shape, tokenizer=tokenizer._tokenizer)
        else:
            export(path, random_params(shape), shape, tokenizer)
        return path, shape

    return save


def values_with(weights):
    """A config for the eight devices of the tests."""
    values = smoke_weights.get_config()
    values.update(weights=str(weights))
    values.update(engine={"max_sequences": 8, "pages": 768}, learn={"microbatch_rows": 8})
    return values


def resolved(weights, *given, **changes):
    values = values_with(weights)
    for name, value in changes.items():
        values.model[name] = value
    return resolved_config(values.to_dict(), given)


SHAPES = {
    "a mixture of Qwen3's": (MIXED, "model"),
    "Llama": (LLAMA, "model"),
    "Qwen2": (QWEN2, "model"),
    "a .gguf file": (QWEN2, "model.gguf"),
}


@pytest.mark.parametrize(("shape", "name"), SHAPES.values(), ids=SHAPES)
def test_the_shape_and_the_vocabulary_are_those_of_the_files(shape, name, saved):
    path, shape = saved(shape, name)
    config = resolved(path)
    assert policy_shape(config, 1) == shape
    assert config.tokenizer.vocab_size == shape.vocab_size
    check_devices(config)


def test_layers_that_model_cannot_describe_are_recorded_as_their_own_configuration(
    tokenizer, tmp_path
):
    folder = tmp_path / "olmo3"
    make_model(
        "olmo3", vocab_size=tokenizer.vocab_size, max_position_embeddings=2048
    ).save_pretrained(folder)
    tokenizer.save(folder)
    config = resolved(folder)
    assert json.loads(config.architecture)["model_type"] == "olmo3"
    shape = open_checkpoint(folder).shape
    shutil.rmtree(folder)  # a run goes on without them
    assert policy_shape(config, 1) == shape
    assert {layer.mixer.window for layer in shape.layers} == {0, 8}


def test_a_run_records_the_shape_and_where_it_is_from(saved, tmp_path):
    path, shape = saved(QWEN2)
    config = resolved(path)
    with Workdir.claim(tmp_path / "run", config):
        recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert recorded["weights"] == str(path)
    assert recorded["model"] == json.loads(json.dumps(dataclasses.asdict(config.model)))
    assert recorded["tokenizer"]["vocab_size"] == shape.vocab_size
    # The same line, with all that was recorded, names the same run.
    assert resolved_config(config.to_json()) == config


def test_what_a_config_says_of_the_model_must_hold(saved):
    path, shape = saved(QWEN2)
    held = {"width": shape.width, "qkv_bias": True, "num_layers": shape.num_layers}
    assert resolved(path, **held) == resolved(path)
    with pytest.raises(ValueError, match=r"model has another shape: ") as refusal:
        resolved(path, width=64, num_layers=shape.num_layers, rope_theta=5e5)
    assert f"config.model.width 64 (stored: {shape.width})" in str(refusal.value)
    assert "config.model.rope_theta 500000.0 (stored: " in str(refusal.value)
    assert "leave out these fields, and the weights tell them" in str(refusal.value)
    assert "num_layers" not in str(refusal.value)


def test_a_field_that_is_given_its_default_must_hold_too(saved):
    path, shape = saved(QWEN2)
    default = ModelConfig().num_heads
    assert default != resolved(path).model.num_heads == shape.layers[0].mixer.num_heads
    with pytest.raises(ValueError, match=rf"model.num_heads {default} \(stored: "):
        resolved(path, "model.num_heads")
    with pytest.raises(ValueError, match=r"tokenizer.vocab_size 1024 \(stored: "):
        resolved(path, "tokenizer.vocab_size")


def test_what_no_layer_of_the_model_uses_need_not_hold(saved):
    path, _ = saved(MOE)
    assert resolved(path, mlp_width=777) == resolved(path)
    path, _ = saved(QWEN2, "dense")
    assert resolved(path, expert_width=777) == resolved(path)
    with pytest.raises(ValueError, match=r"config.model.num_experts 8 \(stored: 0\)"):
        resolved(path, num_experts=8, experts_per_token=2, expert_width=777)


def test_a_run_needs_its_weights_no_more_and_stays_with_their_commit(saved, tmp_path):
    path, _ = saved(QWEN2)
    named = dataclasses.replace(resolved(path), weights=f"org/tiny@{COMMIT}")
    run = tmp_path / "run"
    with Workdir.claim(run, named):
        values = values_with("org/tiny").to_dict()
        (run / CHECKPOINTS_DIR / "0").mkdir(parents=True)
    # Nobody is asked: there is no such model.
    assert resolved_config(values, (), run) == named
    with pytest.raises(ValueError, match=r"config.model.width 64 \(stored: "):
        resolved_config(values | {"model": values["model"] | {"width": 64}}, (), run)


def test_other_weights_bring_their_own_shape(saved):
    first, _ = saved(QWEN2)
    second, shape = saved(MIXED, "other")
    config = config_with_weights(resolved(first), str(second))
    assert policy_shape(config, 1) == shape and config.weights == str(second)


def test_a_context_beyond_the_models_positions_is_refused(saved):
    path, _ = saved(QWEN2)
    values = values_with(path)
    values.update(engine={"max_sequence_length": 4096, "pages": 2048}, learn={"pack_length": 4096})
    with pytest.raises(ValueError, match=r"4096 must be at most model.max_positions 2048"):
        resolved_config(values.to_dict())


@pytest.mark.heavy
def test_the_command_line_plans_what_weights_name(saved, capsys):
    path, _ = saved(QWEN2)
    line = ["ale-jax", "plan", "--config=smoke_weights", f"--config.weights={path}"]
    line += ["--config.hardware.chip=h100", "--config.hardware.devices=1"]
    assert main(line) == 0
    planned = capsys.readouterr().out
    assert main([*line, "--config.model.qkv_bias=True"]) == 0
    assert capsys.readouterr().out == planned
    assert main([*line, f"--config.model.width={RunConfig().model.width}"]) == 2
    assert "config.model.width 1024 (stored: 32)" in capsys.readouterr().err
