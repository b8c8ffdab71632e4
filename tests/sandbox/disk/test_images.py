"""The unpacked files of images."""

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.disk.images import IMAGES, TOOLS, ImageFiles


@pytest.fixture
def place(tmp_path):
    for name in (IMAGES, TOOLS):
        (tmp_path / name).mkdir()
    return tmp_path


def test_what_cannot_be_unpacked_is_a_failure_of_the_start(place):
    def fail(target):
        raise OSError("the daemon went away")

    with pytest.raises(SandboxStartError, match="the daemon went away"):
        ImageFiles(place)._ensure(place / IMAGES / "a", fail)


def test_an_image_is_unpacked_with_its_owners_and_removed_with_it(disk_runtime, place):
    images = ImageFiles(place)
    path = images.ensure("ale-shell")
    shadow = (path / "etc" / "shadow").stat()
    assert (shadow.st_uid, oct(shadow.st_mode)) == (0, "0o100640") and shadow.st_gid != 0
    (place / IMAGES / "0123456789ab").mkdir()  # of an image that is gone
    assert ImageFiles(place).prune() == ["0123456789ab"]
    assert path.exists()
