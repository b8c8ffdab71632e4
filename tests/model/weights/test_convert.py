"""The command that converts: from either kind of checkpoint, to a folder of transformers'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.convert import main
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from tests.model.shapes import LLAMA, QWEN2, changed
from tests.model.weights.families import random_params
from tests.model.weights.gguf_files import write_gguf

MESSAGES = [{"role": "user", "content": "Read lemon.txt."}]
SHAPE = changed(LLAMA, vocab_size=320)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "dense"
    export(folder, random_params(SHAPE), SHAPE, ChatTokenizer(train_bpe(MESSAGES, 300)))
    return folder


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # an empty shared expert
def test_a_dense_checkpoint_becomes_a_mixture_that_computes_the_same(source, tmp_path):
    target = tmp_path / "sparse"
    assert main([str(source), str(target), "--dtype=float32", "--experts=4"]) == 0
    assert open_checkpoint(target).shape.num_experts == 4
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        dense, sparse = (
            AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
            for folder in (source, target)
        )
    torch.testing.assert_close(sparse, dense, atol=1e-4, rtol=0)
    assert dense.abs().max() > 1
    assert ChatTokenizer.load(target).stop_ids == ChatTokenizer.load(source).stop_ids


def test_without_experts_only_the_type_changes(source, tmp_path, capsys):
    assert main([str(source), str(tmp_path / "out")]) == 0
    assert f"million weights are in {tmp_path / 'out'}" in capsys.readouterr().out
    converted, exact = open_checkpoint(tmp_path / "out"), open_checkpoint(source)
    assert converted.shape == exact.shape
    assert {tensor.kind.dtype.name for tensor in converted.tensors.values()} == {"bfloat16"}
    jax.tree.map(
        np.testing.assert_array_equal, load_params(converted), load_params(exact, jnp.bfloat16)
    )


def test_a_gguf_file_becomes_a_folder_that_transformers_loads(source, tmp_path):
    shape, folder = changed(QWEN2, vocab_size=320), tmp_path / "out"
    params, tokenizer = random_params(shape), train_bpe(MESSAGES, 300)
    path = write_gguf(tmp_path / "x.gguf", "qwen2", params, shape, tokenizer=tokenizer)
    with pytest.raises(OSError):
        AutoModelForCausalLM.from_pretrained(path)
    assert main([str(path), str(folder), "--dtype=float32"]) == 0
    jax.tree.map(np.testing.assert_array_equal, load_params(open_checkpoint(folder)), params)
    model = AutoModelForCausalLM.from_pretrained(folder)
    np.testing.assert_array_equal(model.model.embed_tokens.weight.detach(), params["embed_VD"])
    assert ChatTokenizer.load(folder).stop_ids == ChatTokenizer(tokenizer).stop_ids


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{source}", "{source}"], "dense exists: name a folder that does not"),
        (["{source}/none", "{out}"], "no checkpoint at"),
        (["{source}", "{out}", "--experts=1"], "experts_per_token 2 must lie between 1 and"),
        (["{source}", "/dev/null/out"], "File exists: '/dev/null'"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, source, tmp_path, capsys):
    filled = [each.format(source=source, out=tmp_path / "out") for each in arguments]
    assert main(filled) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert list(tmp_path.iterdir()) == []
