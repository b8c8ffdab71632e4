"""What we write, transformers loads bit by bit; and it is there whole or not at all."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from tests.model.shapes import MIXED, MOE, changed
from tests.model.weights.families import FAMILIES, make_model, random_params, save_model
from tests.quick_compile import QUICK_COMPILE

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
MESSAGES = [{"role": "user", "content": "Read lemon.txt."}]
TOKENS = torch.arange(40).reshape(2, 20)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # an empty shared expert
@pytest.mark.parametrize("name", FAMILIES)
def test_there_and_back_again_is_bit_equal(name, tmp_path):
    checkpoint = open_checkpoint(save_model(name, tmp_path / "theirs"))
    params = load_params(checkpoint)
    export(tmp_path / "ours", params, checkpoint.shape, max_shard_bytes=40_000)
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 1
    theirs = make_model(name)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(theirs)
    with torch.no_grad():
        torch.testing.assert_close(again(TOKENS).logits, theirs(TOKENS).logits, rtol=0, atol=0)
    reopened = open_checkpoint(tmp_path / "ours")
    assert reopened.shape == checkpoint.shape
    jax.tree.map(np.testing.assert_array_equal, load_params(reopened), params)


def test_sharded_bfloat16_weights_are_gathered(tmp_path):
    mesh = make_mesh(MeshShape(fsdp=2, expert=2, tensor=2))
    params = random_params(MIXED, jnp.bfloat16)
    export(tmp_path / "one", params, MIXED)
    export(tmp_path / "many", jax.device_put(params, param_shardings(MIXED, mesh)), MIXED)
    files = [tmp_path / folder / "model.safetensors" for folder in ("one", "many")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "many").dtype == torch.bfloat16


def test_two_hosts_load_their_parts_and_the_first_exports_them(tmp_path):
    export(tmp_path / "in", random_params(MIXED), MIXED, max_shard_bytes=40_000)
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = str(listener.getsockname()[1])
    command = [sys.executable, "-m", "tests.model.weights.one_of_two_hosts", port]
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {QUICK_COMPILE}"}
    hosts = [
        subprocess.Popen(
            [*command, str(number), tmp_path / "in", tmp_path / "out"],
            cwd=ROOT,
            env=os.environ | flags,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        errors = [host.communicate()[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], errors
    written = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert written == {file.name: file.read_bytes() for file in (tmp_path / "in").iterdir()}


def test_the_tokenizer_and_what_ends_a_reply_go_along(tmp_path):
    tokenizer = ChatTokenizer(train_bpe(MESSAGES, 300))
    shape = changed(MOE, vocab_size=304)
    export(tmp_path / "out", random_params(shape), shape, tokenizer)
    loaded = ChatTokenizer.load(tmp_path / "out")
    ids = [each.prompt_ids(MESSAGES, first=True).tolist() for each in (loaded, tokenizer)]
    assert ids[0] == ids[1]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == list(tokenizer.stop_ids)


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    params = random_params(MOE)
    dying = params | {"final_norm_D": _Dying(params["final_norm_D"])}
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "out", dying, MOE)
    assert list(tmp_path.iterdir()) == []
    export(tmp_path / "out", params, MOE)
    before = sorted((tmp_path / "out").iterdir())
    with pytest.raises(ValueError, match=r"out exists: name a folder that does not"):
        export(tmp_path / "out", params, MOE)
    assert sorted((tmp_path / "out").iterdir()) == before


class _Dying:
    """An array that is interrupted when it is fetched."""

    def __init__(self, array):
        self.dtype, self.shape = array.dtype, array.shape

    def __getattr__(self, name):
        raise KeyboardInterrupt


def test_a_shard_holds_what_fits_and_the_index_says_where(tmp_path):
    export(tmp_path / "out", random_params(MOE), MOE, max_shard_bytes=20_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == [file.name for file in files]
    assert all(file.stat().st_size < 20_000 + 8_000 for file in files)  # 8,000: its header
    assert sum(file.stat().st_size for file in files) > index["metadata"]["total_size"]


@pytest.mark.parametrize(
    ("change", "dtype", "message"),
    [
        (
            {"qkv_bias": True},
            jnp.float32,
            "no model with such layers as Layer",
        ),
        ({}, jnp.float8_e4m3fn, "weights are float8_e4m3fn, not one of F64, F32, F16, BF16"),
    ],
)
def test_what_transformers_does_not_have_is_refused(change, dtype, message, tmp_path):
    shape = changed(MOE, **change)
    with pytest.raises(ValueError, match=message):
        export(tmp_path / "out", random_params(shape, dtype), shape)
    assert list(tmp_path.iterdir()) == []
