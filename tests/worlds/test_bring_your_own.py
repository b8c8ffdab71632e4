"""The page that tells a stranger how to train on tasks of their own, followed to the letter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick_compile import QUICK_COMPILE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/worlds.md").read_text()
# As small as configs/smoke.py, which is enough to see that everything is played and trained.
SMALL = {
    "model": {"width": 32, "num_layers": 2, "dense_layers": (0,), "num_heads": 2}
    | {"num_kv_heads": 1, "head_width": 16, "mlp_width": 48, "num_experts": 4, "expert_width": 24},
    "tokenizer": {"vocab_size": 320},
    "agent": {"turns": 2},
    "rollout": {"actors": 2, "episodes_per_actor": 4, "max_reply_tokens": 8},
    "engine": {"max_sequences": 8},
    "learn": {"microbatch_rows": 8, "chunks_per_pack": 8},
    "warm_start": {"transcripts_per_family": 8, "rows_per_step": 8, "max_steps": 1}
    | {"probe_every": 1, "probe_tasks": 2},
    "rl": {"steps": 1, "groups_per_step": 2, "group_size": 2},
    "eval": {"tasks": 4, "held_out_tasks": 2},
    # Failures are punished, so that there is something to learn for a policy that knows nothing.
    "algo.advantage": {"mean": "none", "failure_reward": -1.0},
}


def files_of_the_page():
    """The page's blocks of Python, by the names of the files in their first lines."""
    return dict(re.findall(r"```python\n# ([\w.]+)\n(.*?)```", PAGE, re.S))


def commands_of_the_page():
    (block,) = re.findall(r"^Then\n\n((?: {4}.*\n)+)", PAGE, re.M)
    return [line.strip() for line in block.splitlines()]


def run(folder, *line):
    environment = os.environ | {"XLA_FLAGS": QUICK_COMPILE, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    for name, content in files_of_the_page().items():
        (tmp_path / name).write_text(content)
    run(tmp_path, sys.executable, "tasks.py")
    return tmp_path


def test_the_world_is_short():
    files = files_of_the_page()
    assert set(files) == {"sums.py", "tasks.py", "sums_config.py"}
    assert len(files["sums.py"].splitlines()) <= 25


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["threads", "ray"])
def test_the_commands_of_the_page_train_and_evaluate(folder, workers):
    make, check, train = (line.split() for line in commands_of_the_page())
    assert make == ["python", "tasks.py"]
    module = (sys.executable, "-m", "ale_jax.launch")
    assert "easy" in run(folder, *module, *check[1:])
    small = [f"--config.{part}.{k}={v}" for part, its in SMALL.items() for k, v in its.items()]
    run(folder, *module, *train[1:], *small, f"--config.rollout.workers={workers}")
    trained = json.loads((folder / "runs/sums/metrics.jsonl").read_text().splitlines()[-1])
    assert trained["trained_groups/easy"] == 2
    summary = json.loads((folder / "runs/sums/summary.json").read_text())
    assert (summary["config"], summary["rl_steps_trained"]) == ("sums", 1)
    assert set(summary["success_final_families"]) == {"easy", "hard"}
    config = json.loads((folder / "runs/sums/config.json").read_text())
    assert config["worlds"]["folder"] == str(folder)
