"""Configurations as their authors publish them, which say more than those that transformers writes,
and checkpoints with layers that transformers' models do not have."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ale_jax.config.architecture import Dense, Experts, Latent, Rope, YarnScaling
from ale_jax.model.weights.config import read_text
from ale_jax.model.weights.load import open_checkpoint
from benchmarks.families.tiny import make_model

YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
YARN |= {"beta_fast": 32, "beta_slow": 1}
# Of Hugging Face's deepseek-ai/DeepSeek-V3 and DeepSeek-V2-Lite.
BOTH = {"hidden_act": "silu", "attention_bias": False, "moe_layer_freq": 1, "ep_size": 1}
BOTH |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
BOTH |= {"rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 163840}
BOTH |= {"aux_loss_alpha": 0.001, "seq_aux": True, "tie_word_embeddings": False}
V3 = BOTH | {"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432}
V3 |= {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128}
V3 |= {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048}
V3 |= {"n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "routed_scaling_factor": 2.5}
V3 |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
V3 |= {"q_lora_rank": 1536, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1}
V3 |= {"vocab_size": 129280, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}
LITE = BOTH | {"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944}
LITE |= {"num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16}
LITE |= {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1408}
LITE |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 6, "routed_scaling_factor": 1.0}
LITE |= {"scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": False}
LITE |= {"q_lora_rank": None, "first_k_dense_replace": 1, "vocab_size": 102400}
LITE |= {"rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}


def _scaling(slope):
    """Of positions, whose cosine and sine keep their size, and of scores."""
    stretch = 0.1 * slope * math.log(40) + 1
    positions = YarnScaling(40.0, 4096.0, 32.0, 1.0, 1.0, True)
    return Rope(1e4, 64, positions, interleaved=True), pytest.approx(192**-0.5 * stretch**2)


def test_deepseek_v3():
    shape, (rope, scale) = read_text(json.dumps(V3), "config.json"), _scaling(1.0)
    mixer = Latent(128, 1536, 512, 128, 128, scale=shape.layers[0].mixer.scale, rope=rope)
    assert {layer.mixer for layer in shape.layers} == {mixer} and mixer.scale == scale
    experts = Experts(256, 8, 2048, "sigmoid", True, 2.5, True, groups=8, top_groups=4, shared=2048)
    assert [x.feed_forward for x in shape.layers] == [Dense(18432)] * 3 + [experts] * 58
    assert mixer.stored_width == 576


def test_deepseek_v2_lite():
    shape, (rope, scale) = read_text(json.dumps(LITE), "config.json"), _scaling(0.707)
    mixer = Latent(16, 0, 512, 128, 128, scale=shape.layers[0].mixer.scale, rope=rope)
    assert {layer.mixer for layer in shape.layers} == {mixer} and mixer.scale == scale
    experts = Experts(64, 6, 1408, renormalise=False, merit=1, shared=2816)
    assert [x.feed_forward for x in shape.layers] == [Dense(10944)] + [experts] * 26


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (V3, "moe_layer_freq", 2),
        (V3, "scoring_func", "softmax"),
        (V3, "topk_method", "greedy"),
        (V3, "num_key_value_heads", 64),
        (LITE, "topk_method", "noaux_tc"),
        (LITE, "norm_topk_prob", True),
    ],
)
def test_what_published_code_would_compute_otherwise_is_refused(config, field, value):
    with pytest.raises(ValueError, match=f"config.json: {field} "):
        read_text(json.dumps(config | {field: value}), "config.json")


@pytest.mark.heavy
def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    make_model("deepseek_v3").save_pretrained(tmp_path)
    plain, file = open_checkpoint(tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(file)
    more = {f"model.layers.{n}.eh_proj.weight": np.zeros((32, 64), np.float32) for n in (2, 3)}
    save_file(tensors | {n: x for n, x in more.items() if ".2." in n}, file, {"format": "pt"})
    assert open_checkpoint(tmp_path).shape == plain.shape
    save_file(tensors | more, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.3\.eh_proj\.weight is unexpected"):
        open_checkpoint(tmp_path)
