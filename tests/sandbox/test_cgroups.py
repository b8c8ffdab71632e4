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


@pytest.fixture
def slice_of_a_user(tmp_path, monkeypatch):
    """A tree in which this process is in app.slice/shell.scope, and may write to the slice only."""
    own = tmp_path / "app.slice" / "shell.scope"
    own.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").mkdir()  # cannot be written
    monkeypatch.setattr(cgroups, "_mounts", lambda: {"": tmp_path})
    monkeypatch.setattr(cgroups, "_groups", lambda: {"": "/app.slice/shell.scope"})
    return tmp_path / "app.slice"


def test_a_user_without_the_root_uses_the_slice_that_it_is_in(slice_of_a_user, monkeypatch):
    monkeypatch.setattr(cgroups, "_prove", lambda hierarchy: None)  # only a kernel empties a folder
    (slice_of_a_user / "cgroup.controllers").write_text("memory pids")
    found = cgroups.find()
    assert found.parents == {"memory": slice_of_a_user, "pids": slice_of_a_user}
    assert not found.limits_cpus
    assert (slice_of_a_user / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_slice_without_controllers_is_refused_with_the_remedy(slice_of_a_user):
    (slice_of_a_user / "cgroup.controllers").write_text("pids")
    with pytest.raises(cgroups.CgroupsUnavailable, match="no controllers memory; try systemd-run"):
        cgroups.find()


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


def test_what_is_mounted_decides_the_version(tmp_path, monkeypatch):
    controllers = ("memory", "pids", "cpu")
    monkeypatch.setattr(cgroups, "_groups", lambda pid="self": {})
    monkeypatch.setattr(cgroups, "_delegate", lambda parent: dict.fromkeys(controllers, parent))
    monkeypatch.setattr(cgroups, "_prove", lambda hierarchy: None)
    memory, pids = tmp_path / "memory", tmp_path / "pids"

    def found(**mounts):
        monkeypatch.setattr(cgroups, "_mounts", lambda: mounts)
        return cgroups.find()

    split = {"memory": memory, "pids": pids}
    assert found(**split, **{"": tmp_path}) == cgroups.Hierarchy(
        1, split, frozenset(split.values())
    )
    whole = dict.fromkeys(controllers, tmp_path)
    assert found(**{"": tmp_path}) == cgroups.Hierarchy(2, whole, frozenset([tmp_path]))
    with pytest.raises(cgroups.CgroupsUnavailable, match="no memory and pids"):
        found(memory=memory)


def test_a_hierarchy_in_which_nothing_can_be_created_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cgroups, "_mounts", lambda: dict.fromkeys(("memory", "pids"), tmp_path / "x")
    )
    with pytest.raises(cgroups.CgroupsUnavailable, match="cannot create a cgroup"):
        cgroups.find()
