"""Every bridge to others' tasks has a config that finds them and fits its hardware."""

import gzip
import importlib
import json

import pytest

from ale_jax.system.checks import checked_config
from ale_jax.system.plan import GIB, make_plan
from ale_jax.worlds.names import OURS
from tests.test_configs import BRIDGES
from tests.worlds.bridges.libraries import ROOT, python_of

pytestmark = pytest.mark.heavy  # libraries answer in processes of their own
LIBRARIES = {name: name for name in ("gem", "textarena", "bfcl", "verifiers")}
LIBRARIES["reasoning_gym"] = "gem"
QUESTION = {"question": "How much is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}

TASKSET = """
import verifiers.v1 as vf

__all__ = ["Sums"]


class SumTask(vf.Task[vf.TaskData]):
    pass


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for number in range(60):
            yield SumTask(vf.TaskData(prompt=f"{number} + 1 ="), self.config.task)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with what the configs name."""
    for split in ("train", "test"):
        file = tmp_path / "gsm8k/main" / f"{split}-00000-of-00001.jsonl.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(json.dumps(QUESTION | {"note": split}).encode()))
    (tmp_path / "my_sums.py").write_text(TASKSET)
    for name in set(LIBRARIES.values()):
        (tmp_path / f".venv-{name}").symlink_to(ROOT / f".venv-{name}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", BRIDGES)
def test_a_config_of_a_bridge_is_valid_and_says_what_it_takes(folder, name):
    if name in LIBRARIES:
        python_of(LIBRARIES[name])
    module = importlib.import_module(f"ale_jax.configs.bridges.{name}")
    question, command, *rest = module.__doc__.splitlines()
    assert "?" in question and "Expect:" in question
    assert f"--config=configs/bridges/{name}.py --" in command and "--workdir=" in command
    given = module.get_config()
    given.weights = "model.gguf"  # which the command names
    config = checked_config(given.to_dict())
    plan = make_plan(config)
    plan.require_fit()
    assert f"Memory by `plan`: {plan.total / GIB:.1f} GiB of each device." in "\n".join(rest)


def test_each_bridge_has_a_config(folder):
    modules = (importlib.import_module(f"ale_jax.configs.bridges.{name}") for name in BRIDGES)
    shown = {dict(each)["world"] for module in modules for each in module.get_config().worlds.train}
    assert {path for path in OURS.values() if ".bridges." in path} == {OURS[each] for each in shown}
