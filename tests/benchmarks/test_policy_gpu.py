"""The measurements on a GPU: their arithmetic by hand, each once on CPU, and what fails."""

import importlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from ale_jax.model.arithmetic import forward_flops
from ale_jax.model.params import init_params
from ale_jax.system.checks import checked_config
from benchmarks.policy_gpu import __main__ as policy_gpu
from benchmarks.policy_gpu import part, plan
from benchmarks.policy_gpu.decode import (
    expected_experts,
    floor_bytes,
    measure_decode,
    sampler_weights,
)
from benchmarks.policy_gpu.train import measure_train
from tests.model.shapes import MOE, changed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = changed(MOE, num_layers=1, tie_embeddings=False)


def test_the_shape_is_that_of_the_config():
    config = importlib.import_module("ale_jax.configs.qwen3_30b_a3b").get_config().to_dict()
    model = checked_config(config).model
    assert model.policy_shape(plan.VOCABULARY) == plan.qwen3_30b_a3b(plan.WHOLE_LAYERS)
    assert plan.TRAIN.shape.vocab_size == 12_544  # 98 x 128, below 151,936 / 12 = 12,661.3


def test_the_experts_that_some_token_chooses():
    assert expected_experts(MOE, 1) == 2
    assert expected_experts(MOE, 2) == 3.5  # 2, and of the other 6 a quarter of 8 x 3/4
    share = expected_experts(plan.DECODE.shape, 16) / 128
    assert share == pytest.approx(1 - (15 / 16) ** 16) and 0.64 < share < 0.65


def test_what_a_step_must_read():
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), SMALL, jnp.bfloat16))
    parts = floor_bytes(params, SMALL, batch=2, context=10.0)
    # 3.5 of 8 experts, three matrices of 32 x 24, 2 bytes each.
    assert parts["experts"] == 3.5 * 3 * 32 * 24 * 2
    # Queries 32x4x16, keys and values 32x2x16 each, output 4x16x32; router 32x8; norms: two of 16
    # in the heads, three of 32; head 32x96; two rows of 32 of the embedding.
    attention = 2048 + 2 * 1024 + 2048
    assert parts["other_weights"] == 2 * (attention + 256 + 2 * 16 + 3 * 32 + 3072 + 2 * 32)
    # Two conversations, ten tokens, keys and values of 2 heads of 16.
    assert parts["cache"] == 2 * 10 * 2 * 2 * 16 * 2


def test_a_vocabulary_that_is_cut_has_its_share_of_the_arithmetic():
    whole = forward_flops(plan.qwen3_30b_a3b(48), 2048.5)
    cut = forward_flops(plan.TRAIN.shape, 2048.5)
    shares = [each["head"] / sum(each.values()) for each in (whole, cut)]
    assert shares[1] == pytest.approx(shares[0], rel=0.02)


def _zeros(make, *arguments):
    """In the shapes and types that `make` gives weights; random ones take a compilation each."""
    shapes = jax.eval_shape(lambda: make(*arguments))
    return jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)


def test_a_decode_step_is_measured():
    work = plan.DecodeWork(
        SMALL,
        (2,),
        context=6,
        max_sequence_length=16,
        page_tokens=4,
        steps=2,
        dispatches=2,
        repeats=2,
    )
    found = measure_decode(_zeros(sampler_weights, SMALL), work, 2, "cpu", 2e9)
    assert found["ratio"] == pytest.approx(found["step_ms"] / found["floor_ms"])
    assert found["floor_ms"] == pytest.approx(1e3 * sum(found["floor_bytes"].values()) / 2e9)
    # Contexts of 7 and 8 tokens; router and norms are float32 in the sampler.
    assert found["floor_bytes"]["cache"] == 2 * 7.5 * 2 * 2 * 16 * 2
    assert found["floor_bytes"]["other_weights"] == 2 * (6144 + 3072 + 64) + 4 * (256 + 128)
    assert len(found["step_ms_by_repeat"]) == 2


def test_a_training_pass_is_measured():
    work = plan.TrainWork(SMALL, {"16k": 2}, pack_length=16, repeats=2)
    found = measure_train(_zeros(init_params, jax.random.key(0), SMALL), work, work.rows["16k"])
    flops = 3 * 32 * sum(forward_flops(SMALL, 8.5).values())
    assert found["mfu"] == pytest.approx(flops / found["seconds"] / 989e12)


def test_what_fails_is_null_and_ends_nothing_else(capsys):
    def fail():
        raise RuntimeError("out of memory")

    code = part.measure_all(iter([("a", "x", fail), ("b", "x", lambda: {"x": 1.5, "y": 2})]))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert code == 1
    assert first["value"] is None and "out of memory" in first["details"]["error"]
    assert second == {"key": "b", "value": 1.5, "details": {"x": 1.5, "y": 2}}


def _parts(findings, part, quick, failed):
    """Stands in for the processes."""
    yield {"device": {"platform": "gpu", "kind": "H200"}, "versions": {}}
    yield from findings.get(part, ())


@pytest.mark.parametrize(("error", "code"), [({}, 0), ({"error": "no kernel"}, 1)])
def test_the_last_line_has_every_key(error, code, capsys, monkeypatch):
    decode = {"key": "decode_floor_ratio_b64", "value": 1.2, "details": {"step_ms": 6.0}}
    train = {"key": "train_mfu_16k", "value": None if error else 0.4, "details": error}
    fake = partial(_parts, {"decode": [decode], "train": [train]})
    monkeypatch.setattr(policy_gpu, "run_part", fake)
    assert policy_gpu.main([]) == code
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert found.keys() >= set(policy_gpu.KEYS) and found["swap_ms"] is None
    assert (found["decode_floor_ratio_b64"], found["train_mfu_16k"]) == (1.2, train["value"])
    assert "1.200   bar 1.25: met" in out


def test_a_part_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setitem(policy_gpu.LIMITS, "swap", 0.01)
    failed = []
    assert list(policy_gpu.run_part("swap", True, failed)) == []
    assert len(failed) == 1 and failed[0].startswith("swap: killed after 0 s")


WITHOUT_THE_REST = """
import sys
class Refusal:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refusal())
from benchmarks.policy_gpu import part
sys.exit(part.main(["swap"]))
"""


def test_little_is_needed_and_without_a_gpu_nothing_is_measured():
    refused = {"ray", "docker", "transformers", "tokenizers", "safetensors", "gguf", "orbax"}
    refused |= {"ml_collections", "torch", "fastapi", "httpx", "pydantic", "jinja2"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_REST.format(refused=refused)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["device"]["platform"] == "cpu"
