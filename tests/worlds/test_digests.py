"""A digest is another one as soon as the code or an item of a world is."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest

from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.digests import differing, digests
from ale_jax.worlds.families import Families

CODE = """
from ale_jax.worlds import Rows, Step, World


class Sums(World):
    families = {"a": Rows("a.jsonl"), "b": Rows("b.jsonl")}

    def reset(self, item, sandbox):
        return ""

    def step(self, reply):
        return Step()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "digested.py").write_text(CODE)
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"n": 1}) + "\n")
    return tmp_path


def found(folder):
    return dict(digests(Families((Domain("digested:Sums"),), str(folder))))


def test_what_stays_has_the_same_and_what_changes_another(folder):
    before = found(folder)
    assert found(folder) == before
    (folder / "a.jsonl").write_text(json.dumps({"n": 2}) + "\n")
    assert differing(found(folder), before) == ["a"]
    (folder / "digested.py").write_text(CODE + "# another line\n")
    assert differing(found(folder), before) == ["a", "b"]


def test_ours_are_told_apart_by_their_code(monkeypatch, tmp_path):
    before = dict(digests(Families((Domain("countdown"), Domain("corridor")))))
    module = sys.modules["ale_jax.envs.countdown.env"]
    copy = shutil.copytree(Path(module.__file__).parent, tmp_path / "countdown")
    monkeypatch.setattr(module, "__file__", str(copy / "env.py"))
    with (copy / "another.py").open("w") as file:
        file.write("# another\n")
    found = dict(digests(Families((Domain("countdown"), Domain("corridor")))))
    changed = differing(found, before)
    assert changed and all(name.startswith("countdown") for name in changed)


def test_families_of_one_side_alone_do_not_differ():
    assert differing({"a": "1", "b": "2"}, {"b": "2", "c": "3"}) == []


SPEC = WorkerSpec("none", SandboxSpec(), AgentLimits(), (Domain("countdown"),))


def test_a_worker_elsewhere_has_the_same_worlds_or_is_refused():
    known = digests(Families(SPEC.domains))
    RolloutWorker(dataclasses.replace(SPEC, worlds=known)).close()
    others = tuple((name, "0" * 64) for name, _ in known)
    with pytest.raises(ValueError, match=r"family countdown3 of world countdown has other code"):
        RolloutWorker(dataclasses.replace(SPEC, worlds=others))
