"""A block device over a file without a name. Both are gone when nothing uses the device any more,
however this process ends."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from pathlib import Path

CONTROL = Path("/dev/loop-control")
_GET_FREE, _CONFIGURE, _SET_CAPACITY = 0x4C82, 0x4C0A, 0x4C07
_CLEAR_AFTER_USE = 4
_CONFIG = struct.Struct("=II 5Q 4I 160x 2Q 64x")  # struct loop_config of linux/loop.h
_ATTEMPTS = 100

_libc = ctypes.CDLL(None, use_errno=True)


class LoopDevice:
    """The device at `path`. All of its `bytes` are reserved on the host's disk, so that no write to
    it can fail because that disk is full."""

    def __init__(self, directory: Path, size: int):
        """directory: on the disk to use. Errors: OSError."""
        self._file = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self.bytes = 0
        try:
            self._reserve(size)
            self.path, self._device = _attach(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def grow(self, size: int) -> None:
        """Errors: OSError if the host's disk has no room; the device is as large as before then."""
        self._reserve(size)
        fcntl.ioctl(self._device, _SET_CAPACITY)

    def close(self) -> None:
        """Lets go of it. A file system that is mounted from it stays usable."""
        os.close(self._device)
        os.close(self._file)

    def _reserve(self, size: int) -> None:
        disk = os.fstatvfs(self._file)
        if size - self.bytes > disk.f_bavail * disk.f_frsize:  # else it would take all of it first
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # posix_fallocate would write zeros where the file system cannot reserve.
        room = ctypes.c_int64(size - self.bytes)
        if _libc.fallocate(self._file, 0, ctypes.c_int64(self.bytes), room):
            number = ctypes.get_errno()
            os.truncate(self._file, self.bytes)
            raise OSError(number, os.strerror(number))
        self.bytes = size


def _attach(file: int) -> tuple[str, int]:
    for _ in range(_ATTEMPTS):
        with CONTROL.open("rb") as control:
            number = fcntl.ioctl(control, _GET_FREE)
        path = f"/dev/loop{number}"
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            words = (file, 0, *[0] * 5, *[0, 0, 0, _CLEAR_AFTER_USE], 0, 0)
            fcntl.ioctl(device, _CONFIGURE, _CONFIG.pack(*words))
            return path, device
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:  # EBUSY: another process took it first
                raise
    raise OSError(errno.EBUSY, f"no loop device could be taken in {_ATTEMPTS} attempts")
