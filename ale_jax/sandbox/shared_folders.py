"""Folders that all processes of this host share: each is whole or absent, and stays while a process
uses it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

USED, PARTIAL = ".used", ".partial"


class SharedFolders:
    """What a process uses is locked until that process ends."""

    def __init__(self) -> None:
        self._locks: dict[Path, int] = {}

    def ensure(self, target: Path, fill: Callable[[Path], None]) -> Path:
        """Returns `target`; makes it by `fill`, which is given an empty folder, if needed. Errors:
        OSError, and those of `fill`."""
        if target not in self._locks:
            self._locks[target] = _lock(target.with_suffix(USED), fcntl.LOCK_SH)
        if not target.is_dir():
            filling = _lock(target.with_suffix(PARTIAL + USED), fcntl.LOCK_EX)
            try:
                if not target.is_dir():
                    _fill_whole(target, fill)
            finally:
                os.close(filling)
        return target

    def remove(self, target: Path) -> bool:
        """Removes `target` unless a process uses it. Returns whether it did."""
        try:
            lock = _lock(target.with_suffix(USED), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            if not target.is_dir():  # another process was faster
                return False
            shutil.rmtree(target)
        finally:
            os.close(lock)
        return True


def _lock(path: Path, how: int) -> int:
    """The kernel frees the lock if this process dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _fill_whole(target: Path, fill: Callable[[Path], None]) -> None:
    """Whoever sees `target` sees all of it."""
    partial = target.with_suffix(PARTIAL)
    if partial.exists():  # of a process that was killed
        shutil.rmtree(partial)
    partial.mkdir(mode=0o755)
    fill(partial)
    partial.rename(target)
