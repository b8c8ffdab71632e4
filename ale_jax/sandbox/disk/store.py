"""The file system in which the writable roots of one process are: a subvolume for each, with a
quota, and snapshots of them."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import itertools
import json
import os
import secrets
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.disk import kernel

# Room for the file system's own records, and for what was removed but is not freed yet.
SPARE_BYTES, SPARE_PART = 1 << 30, 4  # so many bytes, and a fourth of what is promised
# Nothing in it outlives this process, so no write has to reach the disk at any particular time.
OPTIONS = "nobarrier,nodiscard,commit=5"
FORMAT_S = 30.0


class DiskStore:
    """Subvolumes by name below `top`. For one thread, whose mounts must be private.

    Each subvolume has the room that it was promised: the store is as large as all promises, and
    reserves that on the host's disk. It never shrinks. Errors of every method: OSError.
    """

    def __init__(self, directory: Path, top: Path):
        """directory: on the disk to use. top: an empty directory, over which it is mounted."""
        self._promised: dict[str, int] = {}
        self._serial = itertools.count()
        self._device = LoopDevice(directory, SPARE_BYTES)
        self._top = top
        try:
            self._mount()
        except BaseException:
            self._device.close()
            raise

    def empty(self) -> str:
        """Creates an empty one. What the caller puts into it has to be little."""
        name = str(next(self._serial))
        kernel.create_subvolume(self._fd, name)
        return self._noted(name)

    def writable(self, origin: str, max_bytes: int) -> str:
        """Creates a copy of `origin` that may hold up to `max_bytes`, including what it copied."""
        name = self._copy(origin, str(next(self._serial)), read_only=False)
        with self._dropped_on_failure(name):
            self._promise(name, max_bytes)
            kernel.limit_subvolume(self._fd, self._numbers[name], max_bytes)
        return name

    def freeze(self, origin: str) -> str:
        """Creates a copy that does not change, with a name that cannot be guessed."""
        name = self._copy(origin, secrets.token_hex(16), read_only=True)
        with self._dropped_on_failure(name):
            self._promise(name, self.bytes_of(name))
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._promised

    def drop(self, name: str) -> None:
        kernel.destroy_subvolume(self._fd, name)
        del self._promised[name], self._numbers[name]

    def path(self, name: str) -> Path:
        return self._top / name

    def bytes_of(self, name: str) -> int:
        """What it holds, shared or not, as of a few seconds ago. Any thread may call this."""
        return kernel.referenced(self._groups, self._numbers[name])

    def close(self) -> None:
        """Lets go of it. It ends with the last sandbox that has a root in it."""
        kernel.unmount(str(self._top))
        os.close(self._fd)
        self._device.close()

    def _mount(self) -> None:
        line = ["mkfs.btrfs", "--quiet", "--nodiscard", "--metadata", "single", "--data", "single"]
        subprocess.run(
            [*line, self._device.path], check=True, capture_output=True, timeout=FORMAT_S
        )
        flags = kernel.NOSUID | kernel.NODEV | kernel.NOATIME
        kernel.mount("btrfs", self._device.path, str(self._top), flags, OPTIONS)
        self._fd = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.enable_quota(self._fd)
        self._groups = kernel.quota_groups(self._fd)
        self._numbers: dict[str, int] = {}

    def _copy(self, origin: str, name: str, read_only: bool) -> str:
        with _opened(self._top / origin) as source:
            kernel.snapshot_subvolume(self._fd, source, name, read_only)
        return self._noted(name)

    def _noted(self, name: str) -> str:
        with _opened(self._top / name) as subvolume:
            self._numbers[name] = kernel.number_of(subvolume)
        self._promised[name] = 0
        return name

    @contextlib.contextmanager
    def _dropped_on_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._promised[name] = 0  # also if it cannot be dropped
            self.drop(name)
            raise

    def _promise(self, name: str, max_bytes: int) -> None:
        promised = sum(self._promised.values()) + max_bytes - self._promised[name]
        needed = SPARE_BYTES + promised + promised // SPARE_PART
        try:
            if needed > self._device.bytes:
                self._device.grow(needed)
                kernel.grow_file_system(self._fd)
        except OSError as error:
            raise OSError(
                error.errno, f"the disk cannot hold {max_bytes >> 20} MB more: {error.strerror}"
            ) from error
        self._promised[name] = max_bytes


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


CONTROL = Path("/dev/loop-control")
_GET_FREE, _CONFIGURE, _SET_CAPACITY = 0x4C82, 0x4C0A, 0x4C07
_CLEAR_AFTER_USE = 4
_CONFIG = struct.Struct("=II 5Q 4I 160x 2Q 64x")  # struct loop_config of linux/loop.h
_ATTEMPTS = 100

_libc = ctypes.CDLL(None, use_errno=True)


class LoopDevice:
    """The block device at `path`, over a file without a name. Both are gone when nothing uses the
    device any more, however this process ends. All of its `bytes` are reserved on the host's disk,
    so that no write to it can fail because that disk is full."""

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


PREFIX = b"ale-root "


@dataclasses.dataclass(frozen=True)
class Reference:
    """What stands for a copy of a root wherever a snapshot's content is bytes.

    store: of which process. name: cannot be guessed, so whoever knows it may use it. size: bytes
    that the copy holds, shared with others or not.
    """

    store: str
    name: str
    size: int

    def __bytes__(self) -> bytes:
        return PREFIX + json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, snapshot: bytes) -> Reference:
        """The inverse of bytes(). Errors: SandboxError."""
        if not is_reference(snapshot):
            raise SandboxError("this is a snapshot of a sandbox in memory, not of one on disk")
        return cls(**json.loads(snapshot.removeprefix(PREFIX)))


def is_reference(snapshot: bytes) -> bool:
    return snapshot.startswith(PREFIX)


def held_bytes(snapshot: bytes) -> int:
    """How much a snapshot holds on the host: itself, or what it refers to."""
    return Reference.parse(snapshot).size if is_reference(snapshot) else len(snapshot)
