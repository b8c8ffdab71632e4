"""`ale-jax export`: a run's newest weights as transformers loads them, and what it refuses."""

import dataclasses
import errno
import importlib
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ale_jax.launch import main
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.state import WholeState, abstract_state, draw_weights, make_optimizer
from ale_jax.learn.stored import digests_of, stored
from ale_jax.model.lora import entries
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.lease import LEASE_DIR
from ale_jax.system.workdir import Workdir

MESSAGES = [{"role": "user", "content": "Read lemon.txt."}]
TOKENS = np.arange(24).reshape(2, 12)
LORA = {"rank": 2, "alpha": 4.0, "rslora": False, "targets": ("q", "o"), "start": ""}
FLAGS = ("--config.lora.rank=2", "--config.lora.alpha=4.0", "--config.lora.targets=('q', 'o')")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(weights) -> the folder of a run with adapters and two checkpoints, and its newest state.
    weights: what it says that it began with."""

    def make(weights=""):
        values = importlib.import_module("ale_jax.configs.smoke").get_config().to_dict()
        values |= {"lora": LORA, "weights": weights}
        config = checked_config(values)
        tokenizer = ChatTokenizer(train_bpe(MESSAGES, config.tokenizer.vocab_size))
        policy = policy_shape(config, tokenizer.vocab_size)
        optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
        mesh = make_mesh(config.mesh)
        target = abstract_state(policy, optimizer, mesh, config.lora)
        base = draw_weights(jax.random.key(config.seed), policy, mesh)
        draw = np.random.default_rng(0)

        def fill(leaf):
            values = draw.normal(0, 0.2, leaf.shape).astype(leaf.dtype)
            return jax.device_put(values, leaf.sharding)

        path = tmp_path_factory.mktemp("runs") / "run"
        with Workdir.claim(path, config) as workdir:
            tokenizer.save(path / "tokenizer")
            with Checkpoints(workdir.checkpoints, 2, lambda *_, **__: None) as checkpoints:
                for step in (1, 2):
                    moved = dataclasses.replace(target, params=entries(target.params))
                    state = jax.tree.map(fill, moved)
                    state = dataclasses.replace(state, params=base | state.params)
                    checkpoints.save(step, stored(WholeState(state), digests_of(base, mesh)), {})
        return path, policy, state

    return make


@pytest.fixture
def export(monkeypatch, pytestconfig, capsys):
    """export(workdir, *arguments) -> (exit code, stdout, stderr). named: whether the line names the
    config, too, which the run has recorded."""
    monkeypatch.chdir(pytestconfig.rootpath)

    def call(workdir, *arguments, named=True):
        config = ["--config=configs/smoke.py", *FLAGS] if named else []
        line = ["launch", "export", f"--workdir={workdir}", *config, *arguments]
        return main(line), *capsys.readouterr()

    return call


@partial(jax.jit, static_argnames="policy")
def _logits(params, policy):
    """Of the learner, which adds the adapters as it goes."""
    position_BT = jnp.broadcast_to(jnp.arange(TOKENS.shape[1]), TOKENS.shape)
    segment_BT = jnp.ones_like(position_BT)
    hidden, _ = hidden_states(params, jnp.asarray(TOKENS), position_BT, segment_BT, policy)
    return logits(params, hidden)


def contents(path):
    """All files but the lease, whose number rises with each claim."""
    return sorted(each for each in path.rglob("*") if each.parent.name != LEASE_DIR)


@pytest.mark.heavy
def test_the_folder_says_what_the_run_would(run, export, tmp_path):
    path, policy, state = run()
    before = contents(path)
    code, out, err = export(path, f"--out={tmp_path / 'out'}", named=False)
    assert (code, err) == (0, "") and "the weights of step 2 are in" in out
    assert contents(path) == before
    assert main(["launch", f"--workdir={path}"]) == 2, "what trains names its config"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        theirs = model(torch.asarray(TOKENS)).logits
    ours = _logits(jax.device_get(state.params), policy)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert model.config.max_position_embeddings == policy.max_positions == 2048
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert "Read lemon.txt." in text


@pytest.mark.heavy
def test_adapters_alone_go_to_peft(run, export, tmp_path):
    base = tmp_path / "base"
    path, _, state = run(str(base))
    out = tmp_path / "adapter"
    code, _, err = export(path, f"--out={out}", "--adapter", f"--config.weights={base}")
    assert (code, err) == (0, "")
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (2, str(base))
    tensors = load_file(out / "adapter_model.safetensors")
    a = state.params["adapters"][1]["q_DNH"]["a"]
    found = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"]
    np.testing.assert_array_equal(found, np.asarray(a).T)
    assert (out / "tokenizer.json").is_file() and not (out / "model.safetensors").exists()


@pytest.mark.parametrize(("name", "there"), [("x.gguf", False), ("x", True)])
def test_adapters_on_a_gguf_file_are_refused_as_peft_loads_none(run, export, tmp_path, name, there):
    base = tmp_path / name
    path, _, _ = run(str(base))
    if there:
        base.touch()
    arguments = [f"--out={tmp_path / 'out'}", "--adapter", f"--config.weights={base}"]
    code, _, err = export(path, *arguments)
    assert code == 2 and err.count("\n") == 1, err
    assert f"the adapters lie on {base}, and PEFT does not load a .gguf file" in err
    assert "leave out --adapter" in err and f"model.weights.convert {base} DIR" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [["--adapter"], []])
def test_a_folder_is_there_whole_or_not_at_all(run, export, tmp_path, monkeypatch, kind):
    weights = "base" if kind else ""
    path, _, _ = run(weights)
    out = tmp_path / "exported" / "out"

    def on_full_disk(self, folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ChatTokenizer, "save", on_full_disk)
        code, _, err = export(path, f"--out={out}", f"--config.weights={weights}", *kind)
    assert code == 2 and "No space left" in err
    assert list(out.parent.iterdir()) == []
    assert export(path, f"--out={out}", f"--config.weights={weights}", *kind)[0] == 0
    assert out.stat().st_mode & 0o777 == 0o755


def test_the_config_of_a_model_is_not_taken_for_that_of_a_run(export, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    code, _, err = export(tmp_path, f"--out={tmp_path / 'out'}", named=False)
    assert code == 2 and err.count("\n") == 1, err
    assert f"{tmp_path / 'config.json'} is no config of this version" in err
    assert "name one by --config" in err


@pytest.mark.heavy
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(run, export, tmp_path):
    path, _, _ = run()
    out = tmp_path / "out"
    (tmp_path / "full").mkdir()
    for arguments, answer in (
        ([], "--out is missing: name a folder"),
        ([f"--out={tmp_path / 'full'}"], "full exists: name a folder that does not"),
        ([f"--out={out}", "--adapter"], "the adapters lie on random weights"),
        ([f"--out={out}", "--config.model.rope_theta=5e5"], "model.rope_theta 10000.0 -> 500000.0"),
        ([f"--out={out}", f"--workdir={tmp_path / 'none'}"], "none holds no run"),
        ([f"--out={out}", "--resume"], "export does not take --resume: it takes --config"),
    ):
        code, _, err = export(path, *arguments)
        assert code == 2 and answer in err and err.count("\n") == 1, err
    for damaged in (path / "checkpoints").glob("*/manifest.json"):
        damaged.write_text("{}")
    code, _, err = export(path, f"--out={out}", "--config.mesh.fsdp=2")
    assert code == 2 and "are damaged (steps 1, 2)" in err
    for folder in Path(path / "checkpoints").iterdir():
        folder.rename(tmp_path / folder.name)
    code, _, err = export(path, f"--out={out}")
    assert code == 2 and "there is no checkpoint in" in err
    assert not out.exists() and list((tmp_path / "full").iterdir()) == []
