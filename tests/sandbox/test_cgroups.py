"""The limits that are written, on directories that stand in for the kernel's."""

import dataclasses

import pytest

from ale_jax.sandbox import cgroups
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.spec import SandboxSpec

SPEC = SandboxSpec(memory_mb=16, pids=9, files_mb=4)


@pytest.fixture
def swap(monkeypatch):
    monkeypatch.setattr(cgroups, "host_swaps", lambda: True)


def contents(directory) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_version_2_is_one_directory(tmp_path, swap):
    hierarchy = cgroups.Hierarchy(2, {"memory": tmp_path, "pids": tmp_path}, frozenset())
    group = hierarchy.create("ale-x", SPEC)
    assert group.directories == (tmp_path / "ale-x",)
    assert contents(tmp_path / "ale-x") == {
        **{"memory.max": "16777216", "memory.swap.max": "0", "pids.max": "9"}
    }


def test_version_1_is_one_directory_per_controller(tmp_path, swap):
    parents = {"memory": tmp_path / "memory", "pids": tmp_path / "pids"}
    for parent in parents.values():
        parent.mkdir()
    cgroups.Hierarchy(1, parents, frozenset()).create("ale-x", SPEC)
    assert contents(tmp_path / "memory" / "ale-x") == {
        **{"memory.limit_in_bytes": "16777216", "memory.memsw.limit_in_bytes": "16777216"}
    }
    assert contents(tmp_path / "pids" / "ale-x") == {"pids.max": "9"}


def test_groups_of_the_dead_are_found_wherever_they_lie(tmp_path):
    me = Owner.current()
    dead = dataclasses.replace(me, start=me.start + 1)
    names = {owner: f"{cgroups.PREFIX}{owner}-0" for owner in (me, dead)}
    for folder in ("a", "b/c"):
        for name in (*names.values(), f"{cgroups.PREFIX}something-else"):
            (tmp_path / folder / name).mkdir(parents=True)
    assert cgroups.Hierarchy(2, {}, frozenset([tmp_path])).reap() == 1
    left = {path.name for path in tmp_path.glob("*/**/ale-*")}
    assert left == {names[me], "ale-something-else"}


def test_what_cannot_be_limited_is_refused_and_nothing_left(tmp_path):
    parents = {"memory": tmp_path, "pids": tmp_path / "missing"}
    with pytest.raises(OSError):
        cgroups.Hierarchy(1, parents, frozenset()).create("ale-x", SPEC)
    assert not list(tmp_path.iterdir())


def test_a_group_of_that_name_is_left_to_its_owner(tmp_path):
    memory, pids = tmp_path / "memory", tmp_path / "pids"
    (pids / "ale-x").mkdir(parents=True)
    memory.mkdir()
    with pytest.raises(FileExistsError):
        cgroups.Hierarchy(1, {"memory": memory, "pids": pids}, frozenset()).create("ale-x", SPEC)
    assert (pids / "ale-x").is_dir() and not list(memory.iterdir())
