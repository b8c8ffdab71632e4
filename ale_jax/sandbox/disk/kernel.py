"""What the roots on disk ask of the kernel: mounts, and the ioctls of btrfs (linux/btrfs.h).

Only one thread sees the mounts. They end with that thread and the processes it started, however
those end, and never appear in the host's own table of mounts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

NOSUID, NODEV, READ_ONLY, NOATIME = 2, 4, 1, 1024
_SLAVE, _RECURSIVE, _DETACH = 1 << 19, 1 << 14, 2
_NEW_MOUNTS = 0x00020000
# Their numbers are the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_HERE, _EMPTY_PATH, _CLONE, _CLOEXEC, _FROM_EMPTY_PATH = -100, 0x1000, 1, 0x80000, 4
_ATTRIBUTES = {"read_only": 1, "nosuid": 2, "nodev": 4, "mapped": 0x00100000}
_SECUREBITS, _NO_SETUID_FIXUP = 28, 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


def enter_private_namespace() -> None:
    """Gives the calling thread its own mounts. Those of the host still show up in it."""
    _check(_libc.unshare(_NEW_MOUNTS), "unshare")
    _check(_libc.mount(None, b"/", None, _SLAVE | _RECURSIVE, None), "mount /")


def mount(kind: str, source: str, target: str, flags: int, options: str = "") -> None:
    """Errors, here and below: OSError with the name of the call."""
    words = [os.fsencode(word) for word in (source, target, kind)]
    _check(_libc.mount(*words, flags, os.fsencode(options)), f"mount {kind}")


def unmount(target: str) -> None:
    """Takes it out of the tree. It ends when nothing uses it any more."""
    _check(_libc.umount2(os.fsencode(target), _DETACH), "umount")


def bind_mapped(source: str, target: str, users: int, read_only: bool) -> None:
    """Mounts a directory with its owners mapped: a file of user 0 belongs to the user who is 0 in
    the user namespace that is open as `users`."""
    tree = _call(_OPEN_TREE, _HERE, os.fsencode(source), _CLONE | _CLOEXEC)
    try:
        names = ("nosuid", "nodev", "mapped", *(["read_only"] if read_only else []))
        change = struct.pack("=4Q", sum(_ATTRIBUTES[name] for name in names), 0, 0, users)
        _call(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, change, ctypes.c_size_t(len(change)))
        _call(_MOVE_MOUNT, tree, b"", _HERE, os.fsencode(target), _FROM_EMPTY_PATH)
    finally:
        os.close(tree)


def overlay(lower: str, upper: str, work: str, target: str, owner: int) -> None:
    """Mounts an overlay over mapped directories. owner: their mapped user 0.

    The kernel accesses them later with the rights of whoever mounts them, and user 0 of the host
    does not exist in them.
    """
    with _files_as(owner):
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount("overlay", "root", target, NOSUID | NODEV, options)


@contextlib.contextmanager
def _files_as(user: int) -> Iterator[None]:
    """Accesses files as another user during the block, but keeps all capabilities."""
    _check(_libc.prctl(_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0), "prctl")
    try:
        _libc.setfsuid(user), _libc.setfsgid(user)
        yield
    finally:
        _libc.setfsuid(0), _libc.setfsgid(0)
        _check(_libc.prctl(_SECUREBITS, 0, 0, 0, 0), "prctl")


def _call(number: int, *arguments: object) -> int:
    return _check(_libc.syscall(number, *arguments), f"system call {number}")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


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


def create_subvolume(parent: int, name: str) -> None:
    """Creates an empty subvolume in the open directory `parent`. Errors, as above: OSError."""
    fcntl.ioctl(parent, _CREATE, _named(name))


def snapshot_subvolume(parent: int, origin: int, name: str, read_only: bool) -> None:
    """Creates a snapshot of the subvolume that is open as `origin`. It has the same limit."""
    fcntl.ioctl(parent, _SNAPSHOT, _named(name, origin, _READ_ONLY if read_only else 0))


def destroy_subvolume(parent: int, name: str) -> None:
    """Removes a subvolume. The kernel frees its blocks in the background."""
    fcntl.ioctl(parent, _DESTROY, _named(name))


def enable_quota(fd: int) -> None:
    fcntl.ioctl(fd, _QUOTA, bytearray(struct.pack("=QQ", _ENABLE_QUOTA, 0)))


def limit_subvolume(fd: int, subvolume: int, max_bytes: int) -> None:
    """Limits what a subvolume refers to, whether or not it shares it with others."""
    fcntl.ioctl(fd, _LIMIT, struct.pack("=6Q", subvolume, _LIMITS_REFERENCED, max_bytes, 0, 0, 0))


def grow_file_system(fd: int) -> None:
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
