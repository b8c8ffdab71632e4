"""Folders of tasks by name, out of a registry."""

import json

import pytest

from ale_jax.worlds.bridges.harbor.world import Harbor
from tests.worlds.bridges.harbor.folders import write


def registry(folder, *sets):
    path = folder / "registry.json"
    path.write_text(json.dumps(sets))
    return path


def a_set(name, version, *tasks):
    return {"name": name, "version": version, "description": "", "tasks": list(tasks)}


def fault(path, dataset) -> str:
    with pytest.raises(ValueError) as refusal:
        Harbor(str(path), dataset).families[dataset.partition("@")[0]].read()
    return str(refusal.value)


def test_a_data_set_is_played_by_its_name(tmp_path):
    write(tmp_path / "deep" / "one", {})
    write(tmp_path / "two", {})
    one, two = {"name": "a/one", "path": "deep/one"}, {"name": "a/two", "path": "two"}
    path = registry(tmp_path, a_set("mine", "1.0", one), a_set("mine", "2.0", one, two))
    items = Harbor(str(path), "mine@2.0", eval_share=0.0).families["mine"]
    assert set(items.rows("train")) == {"one", "two"}
    before = items.digest()
    (tmp_path / "two" / "instruction.md").write_text("Something else.")
    assert items.digest() != before
    assert "has mine@1.0, mine@2.0: name one as dataset" in fault(path, "mine")
    assert "has mine@1.0, mine@2.0: name one as dataset" in fault(path, "mine@3.0")


def test_what_is_elsewhere_or_no_folder_is_refused(tmp_path):
    far = {"name": "a/far", "git_url": "https://localhost/far.git", "path": "far"}
    path = registry(tmp_path, a_set("far", "1", far), a_set("gone", "1", {"path": "nowhere"}))
    assert "tasks[0].git_url 'https://localhost/far.git' is elsewhere: clone it" in fault(
        path, "far"
    )
    assert "tasks[0].path 'nowhere' is no folder of a task" in fault(path, "gone")
    path.write_text('{"name": "far"}')
    assert "must be a list of objects" in fault(path, "far")
    path.write_text("[")
    assert "cannot be read" in fault(path, "far")
