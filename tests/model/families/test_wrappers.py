"""Of models that read images, the text model is computed as transformers computes it, and exported
as a model of its family."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from ale_jax.model.families.wrappers import WRAPPERS, text_tensors
from ale_jax.model.weights.config import read_config
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.parity import forward
from benchmarks.families.tiny import VOCAB, make_config, make_model, their_logits
from benchmarks.families.tiny_wrapped import OF_WRAPPER
from tests.model.families.test_families import close

TOKENS_BT = np.random.default_rng(0).integers(3, VOCAB - 1, (2, 33)).astype(np.int32)


def test_every_wrapper_is_tested():
    assert OF_WRAPPER.keys() == WRAPPERS.keys()


@pytest.mark.heavy
@pytest.mark.parametrize("name", OF_WRAPPER)
def test_the_text_model_is_theirs_and_is_exported_alone(name, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "whole")
    whole = open_checkpoint(tmp_path / "whole")
    params = load_params(whole)
    close(forward(params, TOKENS_BT, whole.shape), their_logits(model, TOKENS_BT))
    export(tmp_path / "text", params, whole.shape)
    assert open_checkpoint(tmp_path / "text").shape == whole.shape
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "text").state_dict()
    theirs = text_tensors(model.state_dict())
    assert alone.keys() == theirs.keys()
    assert all(torch.equal(alone[each], theirs[each]) for each in theirs)


def _change_tensors(folder, change):
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


def _stacked(tensors):
    """As the authors of Qwen3.5 store experts."""
    found = {name: x for name, x in tensors.items() if ".experts." not in name}
    for layer in range(2):
        at = f"model.language_model.layers.{layer}.mlp.experts."
        parts = [
            np.stack([tensors[f"{at}{e}.{each}_proj.weight"] for e in range(8)])
            for each in ("gate", "up", "down")
        ]
        found[f"{at}gate_up_proj"] = np.concatenate(parts[:2], axis=1)
        found[f"{at}down_proj"] = parts[2]
    return found


@pytest.mark.heavy
def test_stacked_experts_are_read_one_by_one(tmp_path):
    make_model("qwen3_5_moe").save_pretrained(tmp_path)
    plain = load_params(open_checkpoint(tmp_path))
    _change_tensors(tmp_path, _stacked)
    stacked = load_params(open_checkpoint(tmp_path))
    for name in ("gate_EDF", "up_EDF", "down_EFD"):
        np.testing.assert_array_equal(stacked["layers"][1][name], plain["layers"][1][name])


NAMES = {
    "transformers 4": ("language_model.model.norm.weight", "language_model.lm_head.weight"),
    "transformers 5": ("model.language_model.norm.weight", "lm_head.weight"),
    "Qwen2-VL": ("model.norm.weight", "lm_head.weight"),
}
TOWERS = ("visual.a", "model.visual.a", "vision_tower.a", "model.multi_modal_projector.a")


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_tensors_have_the_names_of_the_text_model_alone(names):
    tensors = dict.fromkeys((*names, *TOWERS, "model.audio.a"), 0.0)
    assert list(text_tensors(tensors)) == ["model.norm.weight", "lm_head.weight", "model.audio.a"]


@pytest.mark.heavy
def test_a_tensor_under_two_names_is_refused(tmp_path):
    make_model("qwen3_vl").save_pretrained(tmp_path)
    twice = {"model.norm.weight": np.zeros(32, np.float32)}
    _change_tensors(tmp_path, lambda tensors: tensors | twice)
    with pytest.raises(ValueError, match=r"tensor model\.norm\.weight: model\.norm.* second time"):
        open_checkpoint(tmp_path)


REFUSED = {
    "of the whole": ("gemma3", {"logit_scale": 2.0}, {}, "logit_scale 2.0 is not supported"),
    "of the text": ("gemma3", {}, {"logit_scale": 2.0}, "logit_scale 2.0 is not supported"),
    "a cap that transformers ignores": (
        *("gemma3", {}, {"final_logit_softcapping": 3.0}),
        "final_logit_softcapping 3.0 is not supported, only None is",
    ),
    "embeddings for each layer": (
        *("gemma4", {}, {"hidden_size_per_layer_input": 8}),
        "hidden_size_per_layer_input 8 is not supported, only 0 is",
    ),
    "experts beside the feed-forward": (
        *("gemma4", {}, {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2}),
        "enable_moe_block True is not supported",
    ),
    "windows that transformers ignores": (
        *("qwen3_vl", {}, {"use_sliding_window": True, "sliding_window": 8}),
        "use_sliding_window True is not supported",
    ),
    "another text model": (
        *("mistral3", {}, {"model_type": "granite"}),
        "text_config.model_type 'granite' is not supported in mistral3, only mistral, ministral3",
    ),
    "a type of numbers": ("qwen3_vl", {"dtype": []}, {}, "transformers does not accept it"),
    "too many layers": ("qwen3_vl", {}, {"num_hidden_layers": 10**9}, "num_hidden_layers 1000000"),
}


@pytest.mark.parametrize(("name", "whole", "text", "message"), REFUSED.values(), ids=REFUSED)
def test_fields_that_say_something_else_are_refused(name, whole, text, message, tmp_path):
    config = make_config(name).to_dict()
    config["text_config"] |= text
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | whole))
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_the_whole_says_whether_embeddings_are_tied(tmp_path):
    path = tmp_path / "config.json"
    config = make_config("gemma3").to_dict()  # of which the text says that they are
    assert config["text_config"]["tie_word_embeddings"]
    for tied in (True, False):
        path.write_text(json.dumps(config | {"tie_word_embeddings": tied}))
        assert read_config(path).tie_embeddings == tied
    del config["tie_word_embeddings"]
    path.write_text(json.dumps(config))
    assert read_config(path).tie_embeddings
