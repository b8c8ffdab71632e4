"""Folders that store maps in four or eight bits are read as transformers dequantises them."""

import json

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.model.weights.quantised_tensors import Mxfp4, TiledFp8
from benchmarks.families.tiny import make_model

FILE = "model.safetensors"
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
TILE = [8, 4]


class InMemory:
    """A tensor that is read from an array."""

    file = "here"

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def read(self, bounds):
        return self.array[tuple(slice(*each) for each in bounds)]


def _in_four_bits(draw, experts, inputs, outputs):
    blocks = draw.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
    return blocks, draw.integers(118, 128, blocks.shape[:3], np.uint8)


def _save(folder, tensors, quantisation):
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantisation}))


@pytest.fixture(scope="module")
def in_mxfp4(tmp_path_factory):
    """A folder of gpt-oss, and transformers' model of the same numbers."""
    folder, draw = tmp_path_factory.mktemp("mxfp4"), np.random.default_rng(0)
    model = make_model("gpt_oss", hidden_size=64, intermediate_size=96)
    model.save_pretrained(folder)
    tensors = load_file(folder / FILE)
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        blocks, scales = map(torch.from_numpy, _in_four_bits(draw, *tensors.pop(name).shape))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            whole = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            model.state_dict()[name].copy_(whole)
    _save(folder, tensors, MXFP4)
    return folder, model


@pytest.fixture(scope="module")
def in_fp8(tmp_path_factory):
    """A folder of Qwen3 with experts, and transformers' model of the same numbers."""
    folder, dequantise = tmp_path_factory.mktemp("fp8"), Fp8Dequantize(None)
    model = make_model("qwen3_moe")
    model.save_pretrained(folder)
    tensors = load_file(folder / FILE)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scales = torch.rand([size // each for size, each in zip(tensors[name].shape, TILE)])
        values = tensors[name].to(torch.float8_e4m3fn)
        tensors |= {name: values, f"{name}_scale_inv": scales + 0.5}
    _save(folder, tensors, FP8 | {"weight_block_size": TILE})
    whole = {
        name: dequantise._dequantize_one(tensor, tensors[f"{name}_scale_inv"])
        if f"{name}_scale_inv" in tensors
        else tensor
        for name, tensor in tensors.items()
        if not name.endswith("_scale_inv")
    }
    return folder, whole


@pytest.mark.heavy
@pytest.mark.parametrize("mesh_shape", [None, MeshShape(data=2, expert=2, tensor=2)], ids=str)
def test_mxfp4_is_what_transformers_makes_of_it(in_mxfp4, mesh_shape, tmp_path):
    folder, model = in_mxfp4
    checkpoint, shardings = open_checkpoint(folder), None
    if mesh_shape:
        shardings = param_shardings(checkpoint.shape, make_mesh(mesh_shape))
    export(tmp_path / "out", load_params(checkpoint, jnp.float32, shardings), checkpoint.shape)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    theirs = model.state_dict()
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


@pytest.mark.heavy
def test_fp8_is_what_transformers_makes_of_it(in_fp8, tmp_path):
    folder, theirs = in_fp8
    checkpoint = open_checkpoint(folder)
    export(tmp_path / "out", load_params(checkpoint), checkpoint.shape)
    found = load_file(tmp_path / "out" / FILE)
    assert found.keys() == theirs.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, theirs[name]), name


BOUNDS = [((0, 4), (0, 96), (0, 40)), ((1, 3), (5, 70), (7, 8)), ((3, 4), (64, 96), (0, 40))]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_a_part_of_mxfp4_is_that_of_the_whole(bounds):
    blocks, scales = _in_four_bits(np.random.default_rng(0), 4, 96, 40)
    whole = convert_moe_packed_tensors(*map(torch.from_numpy, (blocks, scales))).float().numpy()
    stored = Mxfp4(InMemory(blocks), InMemory(scales))
    assert stored.shape == whole.shape
    np.testing.assert_array_equal(stored.read(bounds), whole[tuple(slice(*b) for b in bounds)])


@pytest.mark.parametrize("bounds", [((0, 44), (0, 30)), ((17, 34), (8, 9))], ids=str)
def test_tiles_of_fp8_may_be_cut_off_at_the_end(bounds):
    """As DeepSeek V3 has them: 576 rows are four tiles and a half."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(44, 30)).astype(ml_dtypes.float8_e4m3fn)
    scales = draw.random((6, 8), np.float32)
    whole = values.astype(np.float32) * np.kron(scales, np.ones(TILE, np.float32))[:44, :30]
    stored = TiledFp8(InMemory(values), InMemory(scales), tuple(TILE))
    np.testing.assert_array_equal(stored.read(bounds), whole[tuple(slice(*b) for b in bounds)])


@pytest.mark.heavy
def test_fp8_with_one_scale_for_a_map(tmp_path):
    """As Devstral 2 has it, whose activations are quantised, too, where it is served."""
    model = make_model("ministral3", max_position_embeddings=256)
    model.save_pretrained(tmp_path)
    tensors, theirs = load_file(tmp_path / FILE), {}
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        values, scale = tensors[name].to(torch.float8_e4m3fn), torch.tensor(0.75)
        tensors |= {name: values, f"{name}_scale_inv": scale}
        tensors[name.replace("weight", "activation_scale")] = torch.tensor(2.0)
        theirs[name] = Fp8Dequantize(None)._dequantize_one(values, scale)
    _save(tmp_path, tensors, FP8 | {"activation_scheme": "static", "weight_block_size": None})
    checkpoint = open_checkpoint(tmp_path)
    export(tmp_path / "out", load_params(checkpoint), checkpoint.shape)
    found = load_file(tmp_path / "out" / FILE)
    for name, tensor in found.items():
        assert torch.equal(tensor, theirs.get(name, tensors[name])), name


def _tensors(change):
    def damage(folder, config):
        tensors = load_file(folder / FILE)
        change(tensors)
        save_file(tensors, folder / FILE, metadata={"format": "pt"})

    return damage


def _says(**fields):
    return lambda folder, config: config["quantization_config"].update(fields)


DOWN = "model.layers.0.mlp.down_proj.weight"
BAD = {
    "no scales": (_tensors(lambda t: t.pop(f"{DOWN}_scale_inv")), f"{DOWN}: float8_.* no scales"),
    "no values": (_tensors(lambda t: t.pop(DOWN)), rf"{DOWN}: scales of shape .* not one for each"),
    "other tiles": (_says(weight_block_size=[4, 8]), r"\.weight: scales .* tile of \(4, 8\)"),
    "no tiles": (_says(weight_block_size=[8, 0]), r"weight_block_size \[8, 0\] must be two"),
    "no size": (
        _says(weight_block_size=None),
        "scales of shape .* are not one for each tile of any",
    ),
    "e5m2": (_says(fmt="e5m2"), "fmt 'e5m2' is not supported"),
    "unknown": (_says(group_size=8), "group_size 8 is not supported"),
    "awq": (_says(quant_method="awq"), "quant_method 'awq' is not one of mxfp4, fp8"),
    "plain": (
        lambda folder, config: config.pop("quantization_config"),
        "type 'F8_E4M3' is not one of F64, F32, F16, BF16",
    ),
}


@pytest.mark.parametrize(("damage", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_together_is_refused(in_fp8, damage, message, tmp_path):
    source, _ = in_fp8
    for name in (FILE, "config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    damage(tmp_path, config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        open_checkpoint(tmp_path)


def test_blocks_without_scales_are_refused(in_mxfp4, tmp_path):
    source, _ = in_mxfp4
    tensors = load_file(source / FILE)
    tensors.pop("model.layers.1.mlp.experts.down_proj_scales")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file(tensors, tmp_path / FILE, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1\.mlp\.experts\.down_proj: blocks .* are not MXFP4"):
        open_checkpoint(tmp_path)
