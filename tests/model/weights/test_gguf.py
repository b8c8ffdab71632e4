"""GGUF files: every architecture and quantisation that we read, and files that are damaged."""

import dataclasses
import random
import re
import struct

import gguf
import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.gguf_file import GgufTensor
from ale_jax.model.weights.gguf_reader import quantisations, read_gguf
from ale_jax.model.weights.load import load_params, open_checkpoint
from tests.model.shapes import DENSE, LLAMA, MOE, QWEN2, changed
from tests.model.weights.families import random_params
from tests.model.weights.gguf_files import write_gguf, write_tensor

Q8 = gguf.GGMLQuantizationType.Q8_0
Q4 = gguf.GGMLQuantizationType.Q4_0
SHAPES = {
    "qwen3moe": MOE,
    "qwen3": DENSE,
    "qwen2": QWEN2,
    # The trained positions of Llama 3: the file keeps only what follows from them.
    "llama": changed(LLAMA, llama3_rope=(8.0, 1.0, 4.0, 8192.0), rope_theta=500_000.0),
}


@pytest.mark.parametrize("architecture", SHAPES)
def test_every_architecture_is_read(architecture, tmp_path):
    shape = SHAPES[architecture]
    params = random_params(shape)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", architecture, params, shape))
    assert checkpoint.shape == shape
    jax.tree.map(np.testing.assert_array_equal, load_params(checkpoint), params)


@pytest.mark.parametrize("architecture", ["qwen3moe", "llama"])
@pytest.mark.parametrize("quantisation", [Q8, Q4], ids=lambda kind: kind.name)
def test_each_device_dequantises_its_part(architecture, quantisation, tmp_path):
    shape = SHAPES[architecture]
    params = random_params(shape)
    path = write_gguf(tmp_path / "x.gguf", architecture, params, shape, quantisation)
    checkpoint = open_checkpoint(path)
    whole = load_params(checkpoint)
    wrong = {Q8: 0.01, Q4: 0.2}[quantisation]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=wrong), whole, params)
    assert np.abs(whole["embed_VD"] - params["embed_VD"]).max() > wrong / 20
    # Heads over four devices: parts of one head's rows, too, for the two of keys and values.
    mesh = make_mesh(MeshShape(fsdp=2, expert=2, tensor=2))
    sharded = load_params(checkpoint, shardings=param_shardings(shape, mesh))
    jax.tree.map(np.testing.assert_array_equal, sharded, whole)


# Those of the files that people have today.
TODAY = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
)


def test_the_quantisations_of_today_are_read():
    assert {kind.name for kind in quantisations()} >= set(TODAY)


@pytest.mark.parametrize("kind", quantisations(), ids=lambda kind: kind.name)
def test_a_part_is_read_as_the_gguf_package_reads_the_whole(kind, tmp_path):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    width, rows = 2 * max(block, 4), 7
    draw = np.random.default_rng(0)
    data_RN = draw.integers(0, 256, (rows, width // block * size), np.uint8)
    with np.errstate(all="ignore"):  # any bytes may be scales of any size
        (stored,) = read_gguf(write_tensor(tmp_path / "x.gguf", kind, data_RN)).tensors
        tensor = GgufTensor(tmp_path, stored, None, None)
        whole = gguf.dequantize(data_RN, kind)
        part = tensor.read(((2, 6), (1, width - 1)))
    assert tensor.shape == (rows, width)
    np.testing.assert_array_equal(part, whole[2:6, 1 : width - 1])


@pytest.mark.parametrize("kind", ["Q8_K", "Q1_0"])
def test_a_quantisation_that_is_not_read_is_named(kind, tmp_path):
    kind = gguf.GGMLQuantizationType[kind]
    data_RN = np.zeros((2, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    path = write_tensor(tmp_path / "x.gguf", kind, data_RN)
    with pytest.raises(ValueError, match=rf"tensor x: its type {kind.name} is not read, only F32,"):
        read_gguf(path)


def test_rows_within_a_head_are_put_in_order(tmp_path):
    shape = SHAPES["llama"]
    path = write_gguf(tmp_path / "x.gguf", "llama", random_params(shape), shape)
    tensor = open_checkpoint(path).tensors["model.layers.0.self_attn.q_proj.weight"]
    whole = tensor.read(((0, 64), (0, 32)))
    np.testing.assert_array_equal(tensor.read(((5, 39), (3, 8))), whole[5:39, 3:8])


def test_without_an_output_matrix_the_embedding_is_tied(tmp_path):
    shape = dataclasses.replace(SHAPES["qwen2"], tie_embeddings=True)
    path = write_gguf(tmp_path / "x.gguf", "qwen2", random_params(shape), shape)
    assert open_checkpoint(path).shape == shape


def test_a_file_that_states_no_base_of_the_rotary_embedding_has_that_of_llama_cpp(tmp_path):
    shape = changed(SHAPES["llama"], llama3_rope=(), rope_theta=10_000.0)
    change = {"metadata": {"rope.freq_base": None}}
    path = write_gguf(tmp_path / "x.gguf", "llama", random_params(shape), shape, **change)
    assert open_checkpoint(path).shape == shape


NEW = np.zeros((32,), np.float32)
BAD_CONTENTS = {
    "missing field": ({"metadata": {"block_count": None}}, "block_count is missing"),
    "too many layers": (
        {"metadata": {"block_count": 3}},
        r"tensor model.layers.2.\S+ of shape \(32,\) is missing",
    ),
    "too few layers": (
        {"metadata": {"block_count": 1}},
        r"tensor blk.1.\S+ is unexpected in this model",
    ),
    "far too many layers": (
        {"metadata": {"block_count": 2**31}},
        "block_count 2147483648 must be an integer from 1 to 1024",
    ),
    "another width": (
        {"metadata": {"feed_forward_length": 40}},
        r"tensor model.layers.0.mlp.down_proj.weight has shape \(32, 48\), the model's is \(32, 40",
    ),
    "unexpected": ({"extra": {"blk.0.new": NEW}}, "tensor blk.0.new is unexpected"),
    "rope scaling": (
        {"metadata": {"rope.scaling.type": "yarn"}},
        "rope.scaling.type 'yarn' is not supported, only 'none' is",
    ),
    "rope factors": (
        {"extra": {"rope_freqs.weight": np.full((8,), 2, np.float32)}},
        "tensor rope_freqs.weight: its factors are not Llama 3's",
    ),
    "part of a head rotates": (
        {"metadata": {"rope.dimension_count": 8}},
        "rope.dimension_count 8 is not supported, only 16 is",
    ),
    "integers": (
        {"extra": {"blk.0.new": np.zeros((32,), np.int8)}},
        "tensor blk.0.new: its type I8 is not read, only F32, F16, .*MXFP4.*: take another file",
    ),
    "byte order": (
        {"endianess": gguf.GGUFEndian.BIG},
        "the file is big-endian, .* a little-endian file, .* `gguf-convert-endian COPY little`",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_CONTENTS.values(), ids=BAD_CONTENTS)
def test_what_does_not_fit_is_named(change, message, tmp_path):
    shape = SHAPES["qwen2"]
    path = write_gguf(tmp_path / "x.gguf", "qwen2", random_params(shape), shape, **change)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ": .*" + message):
        open_checkpoint(path)


@pytest.mark.parametrize("more", [-1, 2])
def test_experts_that_are_more_or_fewer_than_the_models_are_refused(more, tmp_path):
    shape, name = SHAPES["qwen3moe"], "blk.1.ffn_down_exps.weight"
    size = (shape.num_experts + more, shape.width, shape.layers[0].experts.width)
    extra = {name: np.zeros(size, np.float32)}
    path = write_gguf(tmp_path / "x.gguf", "qwen3moe", random_params(shape), shape, extra=extra)
    message = f"{path}: tensor {name} has {size[0]} experts, the model {shape.num_experts}"
    with pytest.raises(ValueError, match=re.escape(message)):
        open_checkpoint(path)


@pytest.fixture
def whole(tmp_path):
    shape = SHAPES["qwen2"]
    return write_gguf(tmp_path / "x.gguf", "qwen2", random_params(shape), shape)


def test_an_unknown_architecture_is_named(tmp_path):
    shape = SHAPES["qwen2"]
    path = write_gguf(tmp_path / "x.gguf", "gemma3", random_params(shape), shape)
    with pytest.raises(ValueError, match="'gemma3' is not supported, only qwen3moe, qwen3, qwen2"):
        open_checkpoint(path)


def test_a_truncated_file_is_named_with_the_tensor(whole):
    size = whole.stat().st_size
    whole.write_bytes(whole.read_bytes()[:-100])
    message = (
        rf"x.gguf: cannot be read as GGUF: tensor blk.1.\S+: expected more data .* has {size - 100}"
    )
    with pytest.raises(ValueError, match=message):
        open_checkpoint(whole)


@pytest.mark.parametrize("size", [0, 3, 20, 200])
def test_a_file_that_ends_early_is_named(size, whole):
    whole.write_bytes(whole.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"x.gguf: cannot be read as GGUF"):
        open_checkpoint(whole)


def test_an_unknown_quantisation_is_named_with_the_tensor(whole):
    gguf.GGUFReader(whole, "r+").tensors[0].field.parts[4][0] = 999  # in the file itself
    with pytest.raises(
        ValueError, match=r"x.gguf: .*: tensor token_embd.weight: .*999.* is not a val"
    ):
        open_checkpoint(whole)


HUGE = 1 << 60
NUMBER, TEXT, LIST = gguf.GGUFValueType.UINT8, gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY
ENDLESS = {
    "fields": (0, HUGE, b"", f"{HUGE} fields are more than any model has, 65536"),
    "tensors": (HUGE, 0, b"", f"{HUGE} tensors are more than any model has, 65536"),
    "an array of numbers": (0, 1, (LIST, NUMBER, HUGE), f"{HUGE} items of arrays are more than"),
    "an array of texts": (0, 1, (LIST, TEXT, HUGE), f"{HUGE} items of arrays are more than any"),
    "an array of arrays": (0, 1, (LIST, LIST, 1), "an array of ARRAY is not supported"),
    "an array of what is unknown": (0, 1, (LIST, 99, 1), "99 is not a valid GGUFValueType"),
    "a text": (0, 1, struct.pack("<IQ", TEXT, HUGE), "expected more data at byte"),
    "dimensions": (
        *(1, 0, struct.pack("<Q1sIQ", 1, b"x", 1 << 30, 0)),
        f"{1 << 30} dimensions of a tensor are more than any model has, 4",
    ),
}


@pytest.mark.parametrize(("tensors", "fields", "content", "message"), ENDLESS.values(), ids=ENDLESS)
def test_counts_that_no_model_has_are_refused_before_they_are_read(
    tensors, fields, content, message, tmp_path
):
    if isinstance(content, tuple):
        content = struct.pack("<IIQ", *content)
    name = struct.pack("<Q1s", 1, b"x") if fields == 1 else b""
    path = tmp_path / "x.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, tensors, fields) + name + content)
    with pytest.raises(ValueError, match=f"x.gguf: cannot be read as GGUF: .*{message}"):
        open_checkpoint(path)


def test_no_byte_of_the_metadata_breaks_more_than_the_file(whole):
    data = whole.read_bytes()
    metadata = gguf.GGUFReader(whole).data_offset
    draw, refused = random.Random(0), 0
    for _ in range(200):
        damaged = bytearray(data)
        damaged[draw.randrange(metadata)] = draw.randrange(256)
        whole.write_bytes(damaged)
        try:
            open_checkpoint(whole)
        except ValueError as error:
            refused += 1
            assert "x.gguf" in str(error)
    assert refused > 100
