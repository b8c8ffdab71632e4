"""The unpacked files of images."""

import io
import tarfile

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.disk.images import IMAGES, TOOLS, ImageFiles, _extract

pytestmark = pytest.mark.heavy


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


def _of_the_future(number):
    """An archive with that many files, of each of which tar warns that it is from the future."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for n in range(number):
            member = tarfile.TarInfo(f"{n}")
            member.mtime = 1 << 32
            tar.addfile(member)
    return packed.getvalue()


def test_many_warnings_neither_stop_nor_fail_the_unpacking(tmp_path):
    _extract([_of_the_future(1500)], tmp_path)
    assert len(list(tmp_path.iterdir())) == 1500


def test_a_failure_is_told_with_the_last_words_of_tar(tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    broken = _of_the_future(20)[: 20 * tarfile.BLOCKSIZE] + b"no tar" * 1000
    with pytest.raises(OSError, match=r"(?s)tar ended with status 2: .*Exiting with failure"):
        _extract([broken], tmp_path)


def test_an_image_is_unpacked_with_its_owners_and_removed_with_it(disk_runtime, place):
    images = ImageFiles(place)
    path = images.ensure("ale-shell")
    shadow = (path / "etc" / "shadow").stat()
    assert (shadow.st_uid, oct(shadow.st_mode)) == (0, "0o100640") and shadow.st_gid != 0
    (place / IMAGES / "0123456789ab").mkdir()  # of an image that is gone
    assert ImageFiles(place).prune() == ["0123456789ab"]
    assert path.exists()
