"""A world is found by its short name, by an entry point, or by module and class."""

import re
import sys

import pytest

from ale_jax.envs.countdown.env import Countdown
from ale_jax.worlds.names import OURS, find_world, folder_of, known_names
from tests.rows import each_row

CODE = """
from ale_jax.worlds import Step, World


class Mine(World):
    def reset(self, item, sandbox):
        return ""

    def step(self, reply):
        return Step()


class Half(World):
    def reset(self, item, sandbox):
        return ""


class Other:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "named_world.py").write_text(CODE)
    (tmp_path / "broken_world.py").write_text("import nothing_of_this_name")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("named_world", None)


def test_ours_have_short_names():
    assert find_world("countdown") is Countdown
    assert all(find_world(name).__module__.startswith("ale_jax.") for name in OURS)


def test_a_class_is_looked_for_in_the_folder_of_the_config(folder):
    found = find_world("named_world:Mine", str(folder))
    assert found.__name__ == "Mine" and folder_of(found) == folder


def test_an_installed_package_gives_its_worlds_short_names(folder, monkeypatch):
    package = folder / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[ale_jax.worlds]\nmine = named_world:Mine\n")
    monkeypatch.syspath_prepend(str(folder))
    assert find_world("mine").__name__ == "Mine"
    assert "mine" in known_names()


@each_row(
    "name, said",
    [
        (
            "nowhere",
            r"world 'nowhere' is unknown: choose one of bfcl, corridor, countdown, .*, or name",
        ),
        ("named_world:Nobody", r"module named_world has no class 'Nobody' that is a World"),
        ("named_world:Other", r"module named_world has no class 'Other' that is a World"),
        ("named_world:Half", r"^world 'named_world:Half': Half must define step$"),
        ("absent_world:Mine", r"'absent_world', which is looked for in .* first cannot be imp"),
        ("broken_world:Mine", r"ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    ],
)
def test_what_is_no_world_is_refused_by_name(folder, name, said):
    with pytest.raises(ValueError) as refused:
        find_world(name, str(folder))
    assert re.search(said, str(refused.value)), refused.value
