"""Folders that processes share: whole or absent, and kept while they are used."""

import fcntl
import os

import pytest

from ale_jax.sandbox.shared_folders import SharedFolders


def test_what_is_made_is_whole_or_absent(tmp_path):
    folders, target = SharedFolders(), tmp_path / "a"

    def fail(target):
        (target / "half").write_text("x")
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="the disk went away"):
        folders.ensure(target, fail)
    assert not target.exists()
    path = folders.ensure(target, lambda target: (target / "all").write_text("x"))
    assert os.listdir(path) == ["all"]
    assert SharedFolders().ensure(target, fail) == path


def test_what_a_process_uses_is_not_removed(tmp_path):
    user, target = SharedFolders(), tmp_path / "a"
    user.ensure(target, lambda target: (target / "f").write_text("x"))
    assert not SharedFolders().remove(target) and (target / "f").exists()
    fcntl.flock(user._locks[target], fcntl.LOCK_UN)
    assert SharedFolders().remove(target) and not target.exists()
