"""The comparison on CPU: who is missing is named, who is best is found, and ours does the work."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import param_shardings
from benchmarks.policy_cpu import __main__ as policy_cpu
from benchmarks.policy_cpu import contenders, ours
from benchmarks.policy_cpu.contenders import PEERS
from benchmarks.policy_cpu.summary import compare, table
from benchmarks.policy_cpu.work import WORKS
from benchmarks.weight_swap import WRITTEN_TOKENS, measure_swap
from tests.model.shapes import DENSE, changed

pytestmark = pytest.mark.slow

SMALL = changed(DENSE, num_layers=1)
BARS = {"generation": 2.0, "training": 1.0}


def _row(generated, trained):
    gen = {"first_s": 9.0, "median_s": 512 / generated, "cpu_s": 0.5, "decode_tok_s": generated}
    train = {"first_s": 9.0, "median_s": 1024 / trained, "cpu_s": 0.25, "tok_s": trained}
    return {"gen": gen, "train": train, "versions": {"x": "1"}, "load": 0.0}


def test_ours_is_compared_with_the_best_of_each_part_over_rounds():
    rows = {
        "ours": [_row(210.0, 90.0), _row(190.0, 110.0), _row(200.0, 100.0)],
        "slow": [_row(10.0, 125.0), _row(10.0, 125.0), _row(1000.0, 125.0)],
        "quick": [_row(100.0, 50.0), _row(95.0, 50.0), _row(105.0, 50.0)],
    }
    found = compare(rows, BARS)
    generation, training = found["generation"], found["training"]
    assert (generation["best_peer"], generation["ratio"], generation["met"]) == ("quick", 2.0, True)
    assert generation["ratio_by_round"] == [2.1, 2.0, 0.2]
    assert generation["figures"]["slow"]["tok_s"] == 10.0  # the median, not the mean
    assert (training["best_peer"], training["ratio"], training["met"]) == ("slow", 0.8, False)
    lines = list(table("E16", found))
    assert lines[-1].startswith("  training: 0.80 x slow, the best peer; bar 1.0: MISSED")


def test_without_peers_there_is_no_verdict():
    found = compare({"ours": [_row(1.0, 1.0)]}, BARS)
    assert [each["met"] for each in found.values()] == [None, None]
    assert len(list(table("E0", found))) == 2


FAKE = """
import json, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if sys.argv[0] == "make_ckpt.py":
    print("made\\nckpt/E" + flags["--experts"] + ": 3 tensors")
    raise SystemExit
if "hf_torch" in sys.argv[0] and flags["--experts"] == "64":
    raise SystemExit("no such kernel")
row = {row!r}
row["gen"]["experts"] = flags["--experts"]
open(flags["--out"], "a").write(json.dumps(row) + "\\n")
"""


@pytest.fixture
def peers(tmp_path):
    """A folder of peers in which skyrl has no environment; each says at once what it was to say."""
    row = _row(100.0, 100.0) | {"versions": {"tunix": "0.1.7@/somewhere/of/theirs"}}
    scripts = {peer.script for peer in PEERS.values()}
    for script in ("make_ckpt.py", *scripts):
        (tmp_path / script).write_text(FAKE.replace("{row!r}", repr(row)))
    for environment in ("tunix", "easydel"):
        python = tmp_path / "venvs" / environment / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
    return tmp_path


def test_everybody_there_is_measured_in_each_round_and_who_is_not_is_named(
    peers, capsys, monkeypatch
):
    asked = []

    def measure_ours(checkpoint, calls):
        asked.append(checkpoint.relative_to(peers).as_posix())
        return _row(250.0, 250.0)

    monkeypatch.setattr(contenders, "measure_ours", measure_ours)
    monkeypatch.setattr(
        policy_cpu, "measure_swap", lambda shape: {"swap_ms": 0.1, "replies_lost": 0}
    )
    assert policy_cpu.main([f"--peers={peers}", "--rounds=2"]) == 0
    out = capsys.readouterr().out
    assert "skyrl_tx: not measured: there is no venvs/skyrl/bin/python in the peers' folder" in out
    assert "torch_eager at E64: failed: bench_hf_torch.py ended with 1: no such kernel" in out
    assert asked == [f"ckpt/E{n}" for n in (0, 16, 64)] * 2
    found = json.loads(out.splitlines()[-1])
    assert str(peers) not in out.splitlines()[-1]
    assert found["versions"]["tunix"] == {"tunix": "0.1.7"}
    assert found["absent"].keys() == {"skyrl_tx"}
    measured = {
        name: each["generation"]["figures"].keys() - {"ours"}
        for name, each in found["results"].items()
    }
    assert measured["E0"] == {"tunix", "easydel", "torch_grouped_mm"}  # eager differs by experts
    assert measured["E16"] == measured["E0"] | {"torch_eager"}
    assert measured["E64"] == {"tunix", "easydel"}
    assert found["results"]["E16"]["generation"]["ratio_by_round"] == [2.5, 2.5]
    assert found["swap"]["met"]


def test_without_peers_the_command_says_what_to_name(capsys):
    with pytest.raises(SystemExit):
        policy_cpu.main([])
    assert "--peers is missing" in capsys.readouterr().err


def test_ours_writes_and_trains_what_the_work_says():
    one_device = np.array(jax.devices()[:1]).reshape([1] * 5)
    mesh = Mesh(one_device, [axis.name for axis in dataclasses.fields(MeshShape)])
    params = jax.device_put(policy_cpu.random_params(SMALL), param_shardings(SMALL, mesh))
    row = {
        "gen": ours.generation(SMALL, params, mesh, 1),
        "train": ours.training(SMALL, params, mesh, 1),
    }
    assert row["gen"]["decode_tok_s"] == pytest.approx(8 * 64 / row["gen"]["median_s"])
    assert row["train"]["tok_s"] == pytest.approx(8 * 128 / row["train"]["median_s"])


def test_a_swap_loses_no_reply():
    found = measure_swap(SMALL)
    assert found["replies_lost"] == 0
    assert sum(found["tokens_by_version"]) == 2 * WRITTEN_TOKENS
    # The small policy may end its last step before the thread that swaps has been given the CPU.
    assert 2 <= len(found["tokens_by_version"]) <= 1 + len(found["swap_ms_by_swap"])


def test_the_peers_are_told_the_same_sizes():
    flags = contenders.peer_flags(WORKS["E64"].shape)
    assert " ".join(flags).startswith("--layers 4 --d_model 256 --heads 8 --kv_heads 2 --head_dim")
    assert {"--experts 64", "--topk 8", "--d_ff 96", "--gen_len 64"} <= {
        f"{name} {value}" for name, value in zip(flags[::2], flags[1::2], strict=True)
    }
