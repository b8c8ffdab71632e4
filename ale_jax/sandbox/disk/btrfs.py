"""The ioctls of btrfs (linux/btrfs.h) that create, limit and remove subvolumes."""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from pathlib import Path

_WRITE, _READ = 1, 2
_FIRST_INODE = 256  # the root directory of every subvolume
_READ_ONLY = 1 << 1
_ENABLE_QUOTA = 1
_LIMITS_REFERENCED = 1


def _number(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


_ARGUMENTS = 4096
_RESIZE = _number(_WRITE, 3, _ARGUMENTS)
_TREE_OF = _number(_READ | _WRITE, 18, _ARGUMENTS)
_SNAPSHOT = _number(_WRITE, 23, _ARGUMENTS)
_CREATE = _number(_WRITE, 24, _ARGUMENTS)
_INFO = _number(_READ, 31, 1024)
_QUOTA = _number(_READ | _WRITE, 40, 16)
_LIMIT = _number(_READ, 43, 48)
_DESTROY = _number(_WRITE, 63, _ARGUMENTS)


def create(parent: int, name: str) -> None:
    """Creates an empty subvolume in the open directory `parent`. Here and below: OSError."""
    fcntl.ioctl(parent, _CREATE, _named(name))


def snapshot(parent: int, origin: int, name: str, read_only: bool) -> None:
    """Creates a snapshot of the subvolume that is open as `origin`. It has the same limit."""
    fcntl.ioctl(parent, _SNAPSHOT, _named(name, origin, _READ_ONLY if read_only else 0))


def destroy(parent: int, name: str) -> None:
    """Removes a subvolume. The kernel frees its blocks in the background."""
    fcntl.ioctl(parent, _DESTROY, _named(name))


def enable_quota(fd: int) -> None:
    fcntl.ioctl(fd, _QUOTA, bytearray(struct.pack("=QQ", _ENABLE_QUOTA, 0)))


def limit(fd: int, subvolume: int, max_bytes: int) -> None:
    """Limits what a subvolume refers to, whether or not it shares it with others."""
    fcntl.ioctl(fd, _LIMIT, struct.pack("=6Q", subvolume, _LIMITS_REFERENCED, max_bytes, 0, 0, 0))


def grow(fd: int) -> None:
    """Makes the file system as large as its device."""
    fcntl.ioctl(fd, _RESIZE, bytearray(struct.pack("=q", 0) + b"max".ljust(_ARGUMENTS - 8, b"\0")))


def number_of(subvolume: int) -> int:
    """The id of the subvolume whose root directory is open."""
    found = bytearray(struct.pack("=QQ", 0, _FIRST_INODE).ljust(_ARGUMENTS, b"\0"))
    fcntl.ioctl(subvolume, _TREE_OF, found)
    return struct.unpack_from("=Q", found)[0]


def quota_groups(fd: int) -> Path:
    """The directory in which the kernel reports the usage of each subvolume."""
    info = bytearray(1024)
    fcntl.ioctl(fd, _INFO, info)
    return Path("/sys/fs/btrfs", str(uuid.UUID(bytes=bytes(info[16:32]))), "qgroups")


def referenced(groups: Path, subvolume: int) -> int:
    """How many bytes a subvolume refers to, as of the last commit."""
    return int((groups / f"0_{subvolume}" / "referenced").read_text())


def _named(name: str, fd: int = 0, flags: int = 0) -> bytearray:
    head = struct.pack("=qQQ4Q", fd, 0, flags, 0, 0, 0, 0)
    assert 0 < len(name) < 256 and "/" not in name, name
    return bytearray(head + os.fsencode(name).ljust(_ARGUMENTS - len(head), b"\0"))
