"""What a world says of its families and its oracle is used, or refused by name."""

import dataclasses
import re
import sys

import pytest

from ale_jax.config.worlds import Domain
from ale_jax.records import Task
from ale_jax.worlds.families import Families
from ale_jax.worlds.items import TRAIN
from tests.rows import each_row

CODE = """
from ale_jax.worlds import Seeds, Step, World


class Base(World):
    families = {"a": Seeds()}

    def reset(self, item, sandbox):
        return "?"

    def step(self, reply):
        return Step(done=True)


class NoFamilies(Base):
    families = {}


class Names(Base):
    families = ("a", "b")


class AFile(Base):
    families = {"a": "a.jsonl"}


class AClass(Base):
    families = {"a": Seeds}


class Broken(Base):
    def __init__(self):
        self.table = {}["nothing"]


class OneText(Base):
    def oracle(self, item):
        return "right"


class Numbers(Base):
    def oracle(self, item):
        return [1, 2]


class Texts(Base):
    def oracle(self, item):
        return ["right"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "family_worlds.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("family_worlds", None)


def families(name, folder, **changes):
    domain = dataclasses.replace(Domain(f"family_worlds:{name}"), **changes)
    return Families((domain,), str(folder))


@each_row(
    "name, said",
    [
        ("NoFamilies", r"family_worlds:NoFamilies: families must be a mapping from names to items"),
        ("Names", r"families must be a mapping .* and not \('a', 'b'\)$"),
        ("AFile", r"family 'a' is 'a.jsonl', and no items, such as Rows or Seeds$"),
        ("AClass", r"family 'a' is <class .*Seeds'>, and no items"),
        ("Broken", r"family_worlds:Broken cannot be made: KeyError: 'nothing'$"),
    ],
)
def test_families_that_are_none_are_refused(folder, name, said):
    with pytest.raises(ValueError) as refused:
        families(name, folder)
    assert re.search(said, str(refused.value)), refused.value


def test_an_oracle_answers_a_sequence_of_texts(folder):
    task = Task("a", 3, TRAIN)
    assert families("Texts", folder)["a"].oracle(task) == ("right",)
    assert families("Base", folder)["a"].replies(task) is None
    with pytest.raises(ValueError, match="item 3 of a has no oracle"):
        families("Base", folder)["a"].oracle(task)
    for name, given in (("OneText", "'right'"), ("Numbers", r"\[1, 2\]")):
        with pytest.raises(ValueError, match=f"a: the oracle must return a seq.* not {given}$"):
            families(name, folder)["a"].oracle(task)
