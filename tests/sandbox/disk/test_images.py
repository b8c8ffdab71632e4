"""The unpacked files of images."""

import fcntl
import os

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.disk.images import IMAGES, TOOLS, ImageFiles


@pytest.fixture
def place(tmp_path):
    for name in (IMAGES, TOOLS):
        (tmp_path / name).mkdir()
    return tmp_path


def test_what_is_unpacked_is_whole_or_absent(place):
    images = ImageFiles(place)

    def fail(target):
        (target / "half").write_text("x")
        raise OSError("the daemon went away")

    with pytest.raises(SandboxStartError, match="the daemon went away"):
        images._ensure(place / IMAGES / "a", fail)
    assert not (place / IMAGES / "a").exists()
    path = images._ensure(place / IMAGES / "a", lambda target: (target / "all").write_text("x"))
    assert os.listdir(path) == ["all"]
    assert ImageFiles(place)._ensure(place / IMAGES / "a", fail) == path


def test_what_a_process_uses_is_not_removed(place):
    user = ImageFiles(place)
    user._ensure(place / IMAGES / "a", lambda target: (target / "f").write_text("x"))
    assert not ImageFiles(place)._remove("a") and (place / IMAGES / "a" / "f").exists()
    fcntl.flock(user._locks[place / IMAGES / "a"], fcntl.LOCK_UN)
    assert ImageFiles(place)._remove("a") and not (place / IMAGES / "a").exists()


def test_an_image_is_unpacked_with_its_owners_and_removed_with_it(disk_runtime, place):
    images = ImageFiles(place)
    path = images.ensure("ale-shell")
    shadow = (path / "etc" / "shadow").stat()
    assert (shadow.st_uid, oct(shadow.st_mode)) == (0, "0o100640") and shadow.st_gid != 0
    (place / IMAGES / "0123456789ab").mkdir()  # of an image that is gone
    assert ImageFiles(place).prune() == ["0123456789ab"]
    assert path.exists()
