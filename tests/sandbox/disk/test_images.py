"""The unpacked files of images."""

import fcntl
import os

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.disk.images import ImageFiles


def test_what_is_unpacked_is_whole_or_absent(tmp_path):
    images = ImageFiles(tmp_path)

    def fail(target):
        (target / "half").write_text("x")
        raise OSError("the daemon went away")

    with pytest.raises(SandboxStartError, match="the daemon went away"):
        images._ensure("a", fail)
    assert not (tmp_path / "a").exists()
    path = images._ensure("a", lambda target: (target / "all").write_text("x"))
    assert os.listdir(path) == ["all"]
    assert ImageFiles(tmp_path)._ensure("a", fail) == path


def test_what_a_process_uses_is_not_removed(tmp_path):
    user = ImageFiles(tmp_path)
    user._ensure("a", lambda target: (target / "f").write_text("x"))
    assert not ImageFiles(tmp_path)._remove("a") and (tmp_path / "a" / "f").exists()
    fcntl.flock(user._locks["a"], fcntl.LOCK_UN)
    assert ImageFiles(tmp_path)._remove("a") and not (tmp_path / "a").exists()


def test_an_image_is_unpacked_with_its_owners_and_removed_with_it(disk_runtime, tmp_path):
    images = ImageFiles(tmp_path)
    path = images.ensure("ale-shell")
    shadow = (path / "etc" / "shadow").stat()
    assert (shadow.st_uid, oct(shadow.st_mode)) == (0, "0o100640") and shadow.st_gid != 0
    (tmp_path / "0123456789ab").mkdir()  # of an image that is gone
    assert ImageFiles(tmp_path).prune() == ["0123456789ab"]
    assert path.exists()
