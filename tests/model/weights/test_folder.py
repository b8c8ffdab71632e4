"""Folders that are not what they claim are refused before any weight is read, by name."""

import json
import random
import re
import shutil
import struct

import pytest
from transformers import LlamaConfig

from ale_jax.config.model import ModelConfig
from ale_jax.model.weights.config import read_config
from ale_jax.model.weights.load import open_checkpoint
from tests.model.weights.families import THETA, save_model

FIRST = "model-00001-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_model("qwen3", tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _change_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _change_header(path, change):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def _entry(name, **values):
    return lambda folder: _change_header(folder / FIRST, lambda header: header[name].update(values))


def _index(name, file):
    return lambda folder: _change_json(
        folder / INDEX, lambda index: index["weight_map"].update({name: file})
    )


def _drop(name):
    """A tensor is gone from its file, and the file is whole."""

    def damage(folder):
        def change(header):
            begin, end = header.pop(name)["data_offsets"]
            assert begin == 0  # of the others each moves forward
            for key, entry in header.items():
                if key != "__metadata__":
                    entry["data_offsets"] = [at - end for at in entry["data_offsets"]]

        _change_header(folder / FIRST, change)
        data = (folder / FIRST).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        (folder / FIRST).write_bytes(data[: 8 + length] + data[8 + length + 12288 :])

    return damage


FIRST_TENSOR = "model.embed_tokens.weight"  # of the first shard, [96,32]
SECOND_TENSOR = "model.layers.0.self_attn.k_norm.weight"
BAD_FILES = {
    "missing shard": (
        lambda folder: (folder / FIRST).unlink(),
        rf"{FIRST} is missing: it should hold tensor \S+, and others",
    ),
    "truncated": (
        lambda folder: _cut(folder / FIRST, (folder / FIRST).stat().st_size - 4),
        rf"{FIRST}: tensor \S+: ends at byte \d+, the file has \d+: truncated",
    ),
    "truncated in the header": (lambda folder: _cut(folder / FIRST, 100), f"{FIRST}: truncated"),
    "empty": (lambda folder: _cut(folder / FIRST, 0), f"{FIRST}: truncated"),
    "no header": (
        lambda folder: (folder / FIRST).write_bytes(struct.pack("<Q", 9) + b"not json!"),
        f"{FIRST}: its header is damaged",
    ),
    "no object": (
        lambda folder: (folder / FIRST).write_bytes(struct.pack("<Q", 2) + b"[]"),
        f"{FIRST}: its header is not an object",
    ),
    "shape lies": (
        _entry(FIRST_TENSOR, shape=[96, 31]),
        rf"{FIRST}: tensor {FIRST_TENSOR}: F32 of shape \(96, 31\) is 11904 bytes, its",
    ),
    "shape is none": (
        _entry(FIRST_TENSOR, shape=[-96, -32]),
        f"{FIRST}: tensor {FIRST_TENSOR}: its entry is dam",
    ),
    "no shape": (
        _entry(FIRST_TENSOR, shape=None),
        f"{FIRST}: tensor {FIRST_TENSOR}: its entry is damaged",
    ),
    "unknown type": (
        _entry(FIRST_TENSOR, dtype="F8_E4M3"),
        rf"{FIRST}: tensor {FIRST_TENSOR}: type 'F8_E4M3' is not one of F64, F32, F16, BF16",
    ),
    "no type": (_entry(FIRST_TENSOR, dtype=[]), f"{FIRST}: tensor {FIRST_TENSOR}: its entry is d"),
    "overlap": (
        _entry(SECOND_TENSOR, data_offsets=[0, 64]),
        rf"{FIRST}: tensor \S+: begins at byte \d+, not at \d+",
    ),
    "something behind": (
        lambda folder: (folder / FIRST).open("ab").write(b"more"),
        f"{FIRST}: 4 bytes at its end belong to no tensor",
    ),
    "missing tensor": (
        _drop(FIRST_TENSOR),
        f"{FIRST}: tensor {FIRST_TENSOR} is missing, although {INDEX} lists it",
    ),
    "in another shard": (
        _index(FIRST_TENSOR, "model-00002-of-00003.safetensors"),
        f"{FIRST}: tensor {FIRST_TENSOR} is not listed for this file in {INDEX}",
    ),
    "outside": (
        _index(FIRST_TENSOR, "../x.safetensors"),
        "'../x.safetensors' is not a file of the folder",
    ),
    "no map": (
        lambda folder: (folder / INDEX).write_text("[]"),
        f"{INDEX}: weight_map must give the file of each tensor",
    ),
    "no weights": (
        lambda folder: (folder / INDEX).unlink(),
        f"neither {INDEX} nor model.safetensors in .*: save the checkpoint as safetensors",
    ),
    "not in the index": (
        lambda folder: shutil.copy(folder / FIRST, folder / "adapter_model.safetensors"),
        "adapter_model.safetensors is not part of this model: move it out of the folder",
    ),
    "another head": (
        lambda folder: _change_json(
            folder / "config.json", lambda config: config.update(tie_word_embeddings=True)
        ),
        r"safetensors: tensor lm_head.weight is another than model.embed_tokens.weight, and \S+"
        "config.json says that they are one: set tie_word_embeddings to false there",
    ),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "no config.json in"),
}


@pytest.mark.parametrize(("damage", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_damaged_files_are_named(damage, message, folder):
    open_checkpoint(folder)
    damage(folder)
    with pytest.raises(ValueError, match=message):
        open_checkpoint(folder)


BAD_FIELDS = [
    (
        {"model_type": "gpt2"},
        "model_type 'gpt2' is not supported, only llama, ",
    ),
    ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not one of silu, swish, gelu"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is missing"),
    (
        {"layer_types": ["full_attention", "chunked_attention"]},
        "'chunked_attention' is not one",
    ),
    ({"logit_softcapping": 30.0}, "logit_softcapping 30.0 is not supported: nothing h"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.*awq.* is not one of"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "transformers does not accept it: .*'factor'"),
    (
        {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
        "rope_type 'dynamic' is not one of default, linear, llama3, yarn",
    ),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "slope": 1.0}},
        "slope 1.0 is not supported: nothing here reads it",
    ),
    ({"rope_parameters": "yarn"}, "transformers does not accept it: .*'rope_parameters'"),
    ({"hidden_size": "32"}, "transformers does not accept it: .*'hidden_size' expected int"),
    (
        {"num_hidden_layers": 10**9},
        "num_hidden_layers 1000000000 must be an integer from 1 to 1024",
    ),
    ({"model_type": ["llama"]}, r"model_type \['llama'\] is not supported"),
    ({"layer_types": 1}, "transformers does not accept it: .*'layer_types'"),
    ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ({"rms_norm_eps": 0.0}, "rms_norm_eps 0.0 must be a number above 0"),
    ({"tie_word_embeddings": 1}, "transformers does not accept it: .*'tie_word_embeddings'"),
    (
        {"num_key_value_heads": 3},
        "num_attention_heads 4 must be a multiple of num",
    ),
    ({"vocab_size": 97}, r"tensor \S+ has shape \(96, 32\), the model's is \(97, 32\)"),
    (
        {"num_hidden_layers": 3, "layer_types": None},
        r"tensor model.layers.2.\S+ of shape",
    ),
    (
        {"num_hidden_layers": 1, "layer_types": None},
        r"tensor model.layers.1.\S+ is unexp",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_what_is_not_supported_is_named(fields, message, folder):
    _change_json(folder / "config.json", lambda config: config.update(fields))
    with pytest.raises(ValueError, match=re.escape(str(folder)) + ".*" + message):
        open_checkpoint(folder)


def test_a_damaged_configuration_is_named(folder):
    (folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(ValueError, match=r"config.json: damaged"):
        open_checkpoint(folder)


def test_published_fields_are_read_as_those_of_transformers_5(folder):
    expected = open_checkpoint(folder).shape

    def older(config):
        del config["rope_parameters"]
        config |= {"rope_theta": THETA, "rope_scaling": None, "sliding_window": 4096}

    _change_json(folder / "config.json", older)
    assert open_checkpoint(folder).shape == expected


def test_what_the_first_llamas_do_not_state_is_as_in_transformers(tmp_path):
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "rms_norm_eps": 1e-6}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes, **layers}))
    shape, theirs = read_config(path), LlamaConfig(**sizes, **layers)
    model = ModelConfig.of(shape)
    assert (model.rope_theta, shape.max_positions) == (10_000.0, 2048)
    assert theirs.rope_parameters["rope_theta"] == model.rope_theta
    assert theirs.max_position_embeddings == shape.max_positions
    assert (model.num_kv_heads, model.head_width) == (theirs.num_key_value_heads, theirs.head_dim)
    assert not shape.tie_embeddings and not theirs.tie_word_embeddings


def test_a_tied_head_that_is_stored_all_the_same_is_left_out(folder):
    untied = open_checkpoint(folder).tensors
    embedding, head = untied["model.embed_tokens.weight"], untied["lm_head.weight"]
    with head.file.open("r+b") as file:
        file.seek(head.offset)
        file.write(embedding.read(((0, 96), (0, 32))).tobytes())
    _change_json(folder / "config.json", lambda config: config.update(tie_word_embeddings=True))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.shape.tie_embeddings
    assert "lm_head.weight" not in checkpoint.tensors


def test_every_second_layer_sparse_is_said_by_the_other_layers(tmp_path):
    folder = save_model("qwen3_moe", tmp_path)  # its first layer is dense
    change = {"mlp_only_layers": [], "decoder_sparse_step": 2}
    _change_json(folder / "config.json", lambda config: config.update(change))
    assert ModelConfig.of(open_checkpoint(folder).shape).dense_layers == (0,)


@pytest.mark.heavy
def test_no_byte_of_a_header_breaks_more_than_the_file(folder):
    whole = (folder / FIRST).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    draw, refused = random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(8 + length)] = draw.randrange(256)
        (folder / FIRST).write_bytes(damaged)
        try:
            open_checkpoint(folder)
        except ValueError as error:
            refused += 1
            assert FIRST in str(error)
    assert refused > 200
