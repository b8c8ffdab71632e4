"""What a store promises, on directories that stand in for subvolumes."""

import errno
import os

import pytest

from ale_jax.sandbox.disk import store
from ale_jax.sandbox.disk.store import SPARE_BYTES, DiskStore

MB = 1 << 20


class Device:
    def __init__(self, directory, size):
        self.bytes, self.path = size, "/dev/none"

    def grow(self, size):
        if size > 1 << 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.bytes = size


class Subvolumes:
    """In place of the ioctls of btrfs. broken: the function that fails, and how."""

    def __init__(self, top):
        self.top, self.broken = top, None

    def snapshot_subvolume(self, fd, source, name, read_only):
        (self.top / name).mkdir()

    def destroy_subvolume(self, fd, name):
        (self.top / name).rmdir()

    def number_of(self, fd):
        return 7

    def referenced(self, groups, number):
        self._fail("referenced")
        return 3 * MB

    def limit_subvolume(self, fd, number, max_bytes):
        self._fail("limit_subvolume")

    def grow_file_system(self, fd):
        self._fail("grow_file_system")

    def _fail(self, name):
        if self.broken and self.broken[0] == name:
            raise self.broken[1]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A store with the subvolume "origin"."""
    subvolumes = Subvolumes(tmp_path)

    def mount(self):
        self._fd, self._groups, self._numbers = -1, None, {}

    monkeypatch.setattr(store, "LoopDevice", Device)
    monkeypatch.setattr(store, "kernel", subvolumes)
    monkeypatch.setattr(DiskStore, "_mount", mount)
    made = DiskStore(tmp_path, tmp_path)
    made.subvolumes = subvolumes
    (tmp_path / "origin").mkdir()
    return made


def test_a_promise_is_kept_with_room_to_spare(made):
    made.writable("origin", 8 << 30)
    made.writable("origin", 4 << 30)
    assert made._device.bytes == SPARE_BYTES + (15 << 30)


@pytest.mark.parametrize(
    ("max_bytes", "broken", "error"),
    [
        (10**303 << 20, None, OSError),  # as a float, a fourth more would be infinite
        (1 << 41, None, OSError),
        (8 << 30, ("grow_file_system", OSError(errno.EIO, "bad")), OSError),
        (8 << 30, ("limit_subvolume", OSError(errno.EIO, "bad")), OSError),
        (8 << 30, ("limit_subvolume", KeyboardInterrupt()), KeyboardInterrupt),
    ],
    ids=["no number", "too large", "not grown", "not limited", "interrupted"],
)
def test_a_promise_that_fails_is_undone(made, max_bytes, broken, error):
    kept = made.writable("origin", MB)
    made.subvolumes.broken = broken
    with pytest.raises(error):
        made.writable("origin", max_bytes)
    assert made._promised == {kept: MB} and made._numbers.keys() == {kept}
    made.subvolumes.broken = None
    assert made.writable("origin", MB) in made


def test_a_copy_that_fails_is_dropped(made):
    made.subvolumes.broken = "referenced", OSError(errno.EIO, "bad")
    with pytest.raises(OSError, match="bad"):
        made.freeze("origin")
    assert not made._promised and [each.name for each in made._top.iterdir()] == ["origin"]


def test_a_subvolume_that_cannot_be_dropped_reserves_nothing(made, monkeypatch):
    made.subvolumes.broken = "limit_subvolume", OSError(errno.EIO, "bad")

    def destroy(fd, name):
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(made.subvolumes, "destroy_subvolume", destroy)
    with pytest.raises(OSError, match="busy"):
        made.writable("origin", 8 << 30)
    assert sum(made._promised.values()) == 0
