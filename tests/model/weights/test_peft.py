"""Adapters in PEFT's format: what transformers computes with them, and what is read back."""

import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ale_jax.config.model import ALL_LINEAR, LoraShape
from ale_jax.model.lora import merged, new_adapters, trained, with_trained, without_adapters
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.model.weights.peft import save_peft
from ale_jax.model.weights.peft_modules import CONFIG_FILE, TENSORS_FILE
from ale_jax.model.weights.peft_reader import load_any_peft, load_peft
from benchmarks.families.tiny import VOCAB, make_model, their_logits
from tests.model.shapes import DENSE, MIXED, MOE, changed

LORA = LoraShape(rank=3, alpha=5.0, rslora=True, targets=(ALL_LINEAR,))
TOKENS_BT = np.random.default_rng(0).integers(3, VOCAB, (2, 24)).astype(np.int32)


def drawn(params, shape, lora=LORA):
    """The weights with adapters of random numbers."""
    params = params | new_adapters(jax.random.key(1), shape, lora)
    draw = np.random.default_rng(3)
    fill = lambda x: draw.normal(0, 0.1, x.shape).astype(np.float32)  # noqa: E731
    return with_trained(params, jax.tree.map(fill, trained(params)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of the adapters of MOE, whose experts have some, and these."""
    params = drawn(init_params(jax.random.key(0), MOE), MOE)
    out = tmp_path_factory.mktemp("peft") / "adapter"
    save_peft(out, params, MOE, LORA, "org/base@v2")
    return out, trained(params)


def _same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, list(expected))


def _add(model, folder):
    """Adds to the model's weights what PEFT 0.21 would (`lora.Linear`, `lora.ParamWrapper`)."""
    config, tensors = (
        json.loads((folder / CONFIG_FILE).read_text()),
        load_file(folder / TENSORS_FILE),
    )
    weights = dict(model.named_parameters())
    for key in [name for name in tensors if ".lora_A." in name]:
        a, b = (torch.from_numpy(tensors[key.replace("_A", f"_{each}")]) for each in "AB")
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if name.endswith(("experts", "experts.base_layer")):
            name = name.removesuffix(".base_layer") + (
                ".gate_up_proj" if name.endswith("base_layer") else ".down_proj"
            )
            weight = weights[name]
            a, b = a.reshape(len(weight), -1, a.shape[-1]), b.reshape(len(b), -1, len(weight))
            added, rank = torch.einsum("ore,eri->eoi", b, a), a.shape[1]
            added = added if added.shape == weight.shape else added.transpose(1, 2)
        else:
            weight, added, rank = weights[f"{name}.weight"], b @ a, len(a)
        ends = {end: alpha for end, alpha in config["alpha_pattern"].items() if name.endswith(end)}
        assert (rank != LORA.rank) == bool(ends) == any(map(name.endswith, config["rank_pattern"]))
        alpha = next(iter(ends.values()), config["lora_alpha"])
        with torch.no_grad():
            weight += added * alpha / rank**0.5


@pytest.mark.heavy
@pytest.mark.parametrize(
    "family", ["phi3", "qwen3_moe", "gpt_oss", "granitemoe", "qwen3_next", "qwen3_5_text"]
)
def test_transformers_computes_the_same_with_an_exported_adapter(family, tmp_path):
    model = make_model(family)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    shape, lora = checkpoint.shape, LORA
    if not all(layer.experts for layer in shape.layers) and shape.num_experts:
        lora = dataclasses.replace(LORA, targets=("q", "k", "v", "o", "layers.1.*"))
    if family == "qwen3_next":
        lora = dataclasses.replace(lora, targets=("q", "o", "layers.0.delta_*"))
    params = drawn(load_params(checkpoint), shape, lora)
    save_peft(tmp_path / "adapter", params, shape, lora, str(tmp_path))
    _add(model, tmp_path / "adapter")
    theirs = their_logits(model, TOKENS_BT)
    position_BT = jnp.broadcast_to(jnp.arange(24), TOKENS_BT.shape)
    hidden, _ = hidden_states(params, TOKENS_BT, position_BT, jnp.ones_like(TOKENS_BT), shape)
    ours = logits(params, hidden, shape.logit_cap)
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())
    _same(load_peft(tmp_path / "adapter", shape, lora), trained(params))
    _adds_the_same(tmp_path / "adapter", params, shape)


def _adds_the_same(folder, params, shape):
    """Whatever is known of an adapter beforehand."""
    alone = without_adapters(params) | {"adapters": load_any_peft(folder, shape)}
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, merged(alone), merged(params))


def test_names_are_as_short_as_they_can_be(tmp_path, exported):
    config = json.loads((exported[0] / CONFIG_FILE).read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/base", "v2")
    assert config["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert config["target_parameters"] == ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
    assert config["use_rslora"] and config["rank_pattern"] == {"mlp.experts.gate_up_proj": 6}
    lora = dataclasses.replace(LORA, targets=("layers.1.q", "o"))
    params = drawn(init_params(jax.random.key(0), DENSE), DENSE, lora)
    save_peft(tmp_path / "some", params, DENSE, lora, "base")
    config = json.loads((tmp_path / "some" / CONFIG_FILE).read_text())
    assert config["target_modules"] == ["model.layers.1.self_attn.q_proj", "o_proj"]
    _same(load_peft(tmp_path / "some", DENSE, lora), trained(params))


@pytest.mark.parametrize("targets", [("gate",), ("down",), ("up", "q")])
def test_some_maps_of_experts_come_back_as_they_were(targets, tmp_path):
    lora = dataclasses.replace(LORA, targets=targets)
    params = drawn(init_params(jax.random.key(0), MOE), MOE, lora)
    save_peft(tmp_path / "some", params, MOE, lora, "base")
    _same(load_peft(tmp_path / "some", MOE, lora), trained(params))
    _adds_the_same(tmp_path / "some", params, MOE)


def _rewritten(folder, tmp_path, config=(), tensors=()):
    """A copy with other fields and tensors; None for those that are not to be."""
    copy = tmp_path / "copy"
    copy.mkdir()
    fields = json.loads((folder / CONFIG_FILE).read_text()) | dict(config)
    (copy / CONFIG_FILE).write_text(json.dumps(fields))
    kept = load_file(folder / TENSORS_FILE) | dict(tensors)
    save_file({k: v for k, v in kept.items() if v is not None}, copy / TENSORS_FILE)
    return copy


def test_experts_with_modules_of_their_own_are_read_as_transformers_4_had_them(exported, tmp_path):
    folder, adapters = exported
    tensors = {name: None for name in load_file(folder / TENSORS_FILE) if ".experts" in name}
    for layer, maps in enumerate(adapters):
        for weight, module in (("gate_EDF", "gate"), ("up_EDF", "up"), ("down_EFD", "down")):
            for e in range(MOE.num_experts):
                key = f"base_model.model.model.layers.{layer}.mlp.experts.{e}.{module}_proj"
                for part in "ab":
                    array = np.ascontiguousarray(maps[weight][part][e].T)
                    tensors[f"{key}.lora_{part.upper()}.weight"] = array
    fields = {"target_parameters": None, "rank_pattern": {}, "alpha_pattern": {}}
    folder = _rewritten(folder, tmp_path, fields, tensors)
    _same(load_peft(folder, MOE, LORA), adapters)
    base = init_params(jax.random.key(0), MOE)
    entries = {"adapters": adapters, "adapter_scale": jnp.float32(LORA.scale)}
    _adds_the_same(folder, base | entries, MOE)


Q = "base_model.model.model.layers.0.self_attn.q_proj"
EXPERTS = "base_model.model.model.layers.0.mlp.experts"


@pytest.mark.parametrize(
    ("config", "tensors", "answer"),
    [
        ({"peft_type": "IA3"}, {}, "peft_type 'IA3' must be 'LORA'"),
        ({"r": 8}, {}, "r 8 must be 3"),
        ({"bias": "all"}, {}, "bias 'all' must be 'none'"),
        ({"use_dora": True}, {}, "use_dora True is not supported"),
        ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save .* is not supported"),
        ({"fan_in_fan_out": True}, {}, "fan_in_fan_out True is not supported"),
        ({"use_rslora": False}, {}, "use_rslora False, which is not the scale 2.88675 of"),
        ({"lora_alpha": 6.0}, {}, "has alpha 6.0, rank 3 and use_rslora True"),
        ({"alpha_pattern": {}}, {}, "gate_up_proj has alpha 5.0, rank 6"),
        ({"rank_pattern": {}}, {}, "gate_up_proj has rank 6, and the config says 3"),
        ({}, {f"{Q}.lora_B.weight": None}, "lora_B.weight is missing"),
        ({}, {f"{Q}.lora_A.weight": None, f"{Q}.lora_B.weight": None}, "has no adapter of q_DNH"),
        ({}, {"base_model.model.lm_head.lora_A.weight": np.ones(1)}, "belongs to no map of this"),
    ],
)
def test_what_is_not_as_it_must_be_is_refused_by_name(exported, tmp_path, config, tensors, answer):
    folder = _rewritten(exported[0], tmp_path, config, tensors)
    with pytest.raises(ValueError, match=answer):
        load_peft(folder, MOE, LORA)


@pytest.mark.parametrize(
    ("config", "tensors", "answer"),
    [
        ({}, {f"{Q}.lora_A.weight": np.ones((3, 64), np.float32)}, r"q_proj: A .* is \(3, 32\)"),
        ({}, {f"{Q}.lora_B.weight": np.ones((96, 3), np.float32)}, r"q_proj: B .* is \(64, 3\)"),
        ({}, {f"{Q}.lora_B.weight": np.ones((64, 2), np.float32)}, "q_proj .* differ in rank"),
        ({}, {f"{Q}.lora_A.weight": np.ones(96, np.float32)}, "q_proj.* is no matrix"),
        ({}, {f"{Q}.lora_A.weight": np.ones((0, 32), np.float32)}, "q_proj.* is no matrix"),
        ({}, {f"{Q}.lora_A.weight": np.full((3, 32), 3.4e38)}, "q_proj.* not finite in bfloat16"),
        ({}, {f"{Q}.lora_A.weight": np.full((3, 32), np.nan)}, "q_proj.* not finite in bfloat16"),
        ({}, {f"{EXPERTS}.lora_A.weight": np.ones((25, 24), np.float32)}, "differ in rank"),
        ({"lora_alpha": "5"}, {}, "alpha '5', .* must be a number"),
        ({"r": [3]}, {}, r"has rank 3, and the config says \[3\]"),
        ({"rank_pattern": [6]}, {}, "rank_pattern .* is not an object"),
        ({"target_parameters": 5}, {}, "target_parameters 5 is not a list of names"),
        ({"use_dora": True}, {}, "use_dora True is not supported"),
        ({"bias": "all"}, {}, "bias 'all' must be 'none'"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_by_name(
    exported, tmp_path, config, tensors, answer
):
    folder = _rewritten(exported[0], tmp_path, config, tensors)
    with pytest.raises(ValueError, match=answer):
        load_any_peft(folder, MOE)


def test_an_adapter_of_another_model_is_refused(exported, tmp_path):
    with pytest.raises(ValueError, match="belongs to no map of this model"):
        load_any_peft(exported[0], DENSE)
    with pytest.raises(ValueError, match=r"A has shape \(3, 32\), the model's is \(3, 16\)"):
        load_any_peft(exported[0], changed(MOE, width=16))
    nothing = dict.fromkeys(load_file(exported[0] / TENSORS_FILE))
    with pytest.raises(ValueError, match="has no adapters"):
        load_any_peft(_rewritten(exported[0], tmp_path, tensors=nothing), MOE)


def test_adapters_of_maps_that_are_no_targets_are_refused(exported):
    with pytest.raises(ValueError, match=r"q_DNH in layer 0: set lora\.targets to"):
        load_peft(exported[0], MOE, dataclasses.replace(LORA, targets=("k", "v", "o", "*.[gud]*")))


def test_what_peft_would_mistake_or_cannot_hold_is_refused(tmp_path):
    params = drawn(init_params(jax.random.key(0), MIXED), MIXED)
    with pytest.raises(ValueError, match=r"layers.0.mlp.gate_proj for one of the experts: export"):
        save_peft(tmp_path / "out", params, MIXED, LORA, "base")
    with pytest.raises(ValueError, match="trained in full"):
        save_peft(tmp_path / "out", init_params(jax.random.key(0), MIXED), MIXED, LORA, "base")
    with pytest.raises(ValueError, match="exists: name a folder that does not"):
        save_peft(tmp_path, params, MIXED, LORA, "base")
    with pytest.raises(ValueError, match=r"there is no .*adapter_config.json: name a folder in"):
        load_peft(tmp_path, MIXED, LORA)
    assert not list(tmp_path.iterdir())
