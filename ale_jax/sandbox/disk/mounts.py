"""Mounts that only one thread sees. They end with that thread and the processes it started, however
those end, and never appear in the host's own table of mounts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator

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
