"""Writable roots: what a sandbox of bubblewrap sees as its file system."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
import shutil
import stat
from concurrent.futures import Executor
from pathlib import Path, PurePosixPath

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.booting import user_id
from ale_jax.sandbox.disk import kernel
from ale_jax.sandbox.disk.images import IMAGES, TOOLS
from ale_jax.sandbox.disk.store import CONTROL, DiskStore, Reference
from ale_jax.sandbox.host_ids import UserRange, claim_range
from ale_jax.sandbox.runner.usage import Usage
from ale_jax.sandbox.spec import ETC, SandboxSpec

DIRECTORY_VARIABLE, DIRECTORY = "ALE_DISK", "/var/lib/ale/disk"
USERS, MOUNTED = "users", "mounted"
PRIVATE, REACHABLE = 0o700, 0o711
STORE, LOWER, DISK = "store", "lower", "disk"  # mount points
UPPER, WORK = "upper", "work"  # directories of an overlay
HOSTS = "127.0.0.1 localhost\n"
SPLITTING = (",", ":", "\\")  # the kernel splits an overlay's options at these


def directory() -> Path:
    """The directory for everything on disk. Creates it. Errors: OSError."""
    chosen = Path(os.environ.get(DIRECTORY_VARIABLE, DIRECTORY)).absolute()
    if any(each in str(chosen) for each in SPLITTING):
        raise OSError(f"{chosen} must not contain any of {' '.join(SPLITTING)}")
    chosen.mkdir(parents=True, exist_ok=True)
    chosen.chmod(REACHABLE)
    # An image's set-user-id programs must not be within reach of the host's users.
    modes = {IMAGES: PRIVATE, USERS: PRIVATE, TOOLS: REACHABLE, MOUNTED: REACHABLE}
    for name, mode in modes.items():
        (chosen / name).mkdir(exist_ok=True)
        (chosen / name).chmod(mode)
    return chosen


def unavailable() -> str | None:
    """Why this host cannot have roots on disk, with the remedy; None if it can."""
    if os.getuid() != 0:
        return "needs root, to mount a file system with quotas; run it as root"
    if not shutil.which("mkfs.btrfs"):
        return "needs btrfs, whose quotas bound it; type: apt-get install btrfs-progs"
    if not CONTROL.exists():
        return f"needs loop devices; type: modprobe loop (there is no {CONTROL})"
    return None


@dataclasses.dataclass(frozen=True)
class Root:
    """name: of its subvolume. path: where it is mounted until it is enclosed."""

    name: str
    path: Path
    users: UserRange
    max_bytes: int


class Roots:
    """All roots of one runtime. For the thread that starts its sandboxes, except `bytes_of`.

    The thread gets mounts of its own, which the sandboxes inherit. Errors: OSError.
    """

    def __init__(self):
        chosen = directory()
        self._claims, self._mounted = chosen / USERS, chosen / MOUNTED
        self._id = secrets.token_hex(16)
        self._serial = itertools.count()
        self._idle: list[UserRange] = []
        self._new: dict[tuple[Path, int, tuple[str, ...]], str] = {}
        kernel.enter_private_namespace()
        kernel.mount("tmpfs", "roots", str(self._mounted), kernel.NOSUID | kernel.NODEV, "mode=711")
        for name in (STORE, LOWER, DISK):
            (self._mounted / name).mkdir()
        self._store = DiskStore(chosen, self._mounted / STORE)

    def make(self, spec: SandboxSpec, image: Path, origin: Reference | None) -> Root:
        """Mounts a new root. image: its files. origin: what it starts with; None: nothing else."""
        max_bytes = spec.disk_mb << 20
        found = self._found(origin) if origin else self._unused(spec, image)
        name = self._store.writable(found, max_bytes)
        path = self._mounted / f"root-{next(self._serial)}"
        ids = None
        try:
            ids = self._idle.pop() if self._idle else claim_range(self._claims)
            path.mkdir()
            self._mount(image, self._store.path(name), path, ids)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()
            if ids:
                self._idle.append(ids)
            self._store.drop(name)
            raise
        return Root(name, path, ids, max_bytes)

    def enclosed(self, root: Root) -> None:
        """Called when its sandbox runs, which keeps the mount in a namespace of its own."""
        kernel.unmount(str(root.path))
        root.path.rmdir()

    def freeze(self, root: Root) -> Reference:
        """Returns a copy that does not change; it stays until it is forgotten."""
        name = self._store.freeze(root.name)
        return Reference(self._id, name, self._store.bytes_of(name))

    def forget(self, copy: Reference) -> None:
        """Errors: SandboxError."""
        try:
            self._store.drop(self._found(copy))
        except OSError as error:
            raise SandboxError(f"the snapshot cannot be removed: {error}") from error

    def bytes_of(self, name: str) -> int:
        return self._store.bytes_of(name)

    def release(self, root: Root) -> None:
        """Removes a root whose processes are dead."""
        if root.path.exists():
            self.enclosed(root)
        self._idle.append(root.users)
        self._store.drop(root.name)

    def _found(self, copy: Reference) -> str:
        if copy.store != self._id or copy.name not in self._store:
            raise OSError(
                "there is no such copy of a root: it ended with its process or was removed"
            )
        return copy.name

    def _mount(self, image: Path, subvolume: Path, path: Path, ids: UserRange) -> None:
        lower, disk = str(self._mounted / LOWER), str(self._mounted / DISK)
        kernel.bind_mapped(str(image), lower, ids.namespace, read_only=True)
        try:
            kernel.bind_mapped(str(subvolume), disk, ids.namespace, read_only=False)
            try:
                kernel.overlay(lower, f"{disk}/{UPPER}", f"{disk}/{WORK}", str(path), ids.first)
            finally:
                kernel.unmount(disk)  # the overlay has taken what it needs
        finally:
            kernel.unmount(lower)

    def _unused(self, spec: SandboxSpec, image: Path) -> str:
        """The subvolume of a root in which nothing has happened yet."""
        key = image, user_id(spec), tuple(spec.parts)
        if key not in self._new:
            name = self._store.empty()
            _lay_out(self._store.path(name), image, spec)
            self._new[key] = name
        return self._new[key]


class HeldRoot:
    """The root of a running sandbox, for other threads. executor: the thread of `roots`."""

    def __init__(self, roots: Roots, root: Root, executor: Executor):
        self._roots, self._root, self._executor = roots, root, executor

    def usage(self) -> Usage:
        used = self._roots.bytes_of(self._root.name)
        return {"disk_bytes": used, "disk_limit_bytes": self._root.max_bytes}

    def enclosed(self) -> None:
        self._executor.submit(self._roots.enclosed, self._root).result()

    def freeze(self) -> Reference:
        return self._executor.submit(self._roots.freeze, self._root).result()

    def release(self) -> None:
        """Removes it. Its processes must be dead."""
        self._executor.submit(self._roots.release, self._root).result()


def _lay_out(subvolume: Path, image: Path, spec: SandboxSpec) -> None:
    """Creates the directories of an overlay, with those that the agent owns. The rest of the image
    keeps its owners."""
    upper = subvolume / UPPER
    for path in (upper, subvolume / WORK):
        path.mkdir()
    _like(image, upper)
    for part, mode in spec.parts.items():
        made = _made(upper, image, part)
        os.chmod(made, mode)
        os.chown(made, user_id(spec), user_id(spec))
    hosts = _made(upper, image, ETC) / "hosts"
    if not hosts.exists():
        hosts.write_text(HOSTS)


def _made(upper: Path, image: Path, path: str) -> Path:
    """Creates the directory `path` in `upper`, with its parents, as they are in the image."""
    below = PurePosixPath(path).relative_to("/")
    for each in [*reversed(below.parents), below][1:]:
        if not (upper / each).is_dir():
            (upper / each).mkdir(mode=0o755)
            _like(image / each, upper / each)
    return upper / below


def _like(source: Path, copy: Path) -> None:
    """Gives a directory the mode and the owner that it has in the image."""
    try:
        found = source.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"the image has a file or a link at {source}, which must be a directory")
    os.chmod(copy, stat.S_IMODE(found.st_mode))
    os.chown(copy, found.st_uid, found.st_gid)
