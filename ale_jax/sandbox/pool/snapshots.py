"""Stores archives of working files, named by their content, up to a total size."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import hashlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

from ale_jax.files import write_atomically
from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.disk.store import held_bytes, is_reference
from ale_jax.sandbox.pool.api import NodeFull, Record, SnapshotInfo

PREFIX = "ale-snap-"
FULL = (errno.ENOSPC, errno.EDQUOT)
MAX_REFERENCE = 1000
NAME = re.compile(r"[0-9a-f]{64}")
MAX_HELD = 1 << 30  # bytes of archives in memory at a time, half of them for one owner


class Memory:
    """Bounds how many bytes of archives are in memory at a time; others wait. One that is larger
    than `most` bytes is held alone."""

    def __init__(self, most: int):
        self._most = self._free = most
        self._line, self._freed = asyncio.Lock(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Holds `size` bytes for the duration of the block."""
        size = min(size, self._most)
        async with self._line:  # in turn, so that small ones do not overtake a large one for ever
            while self._free < size:
                self._freed.clear()
                await self._freed.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._freed.set()


class SnapshotStore:
    """Archives in a directory, named by their SHA-256. For one event loop; files are read and
    written in threads.

    If a new archive does not fit, the least recently used ones are removed, except for pinned ones:
    living sandboxes may have to be started from them again. directory: may hold the archives of an
    earlier pool; empty: a temporary directory, which `close` removes. forget: called with each
    archive that is removed. An archive may be a `Reference`, whose size is that of the root.
    """

    def __init__(
        self,
        directory: str,
        max_bytes: int,
        record: Record,
        forget: Callable[[bytes], None] = lambda content: None,
    ):
        self._temporary = None if directory else _temporary_directory()
        self.directory = Path(directory or self._temporary.name)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.max_bytes, self._record, self._forget = max_bytes, record, forget
        self._pins: collections.Counter[str] = collections.Counter()
        self._writing = asyncio.Lock()
        self.memory = Memory(MAX_HELD // 2)
        self._infos: dict[str, SnapshotInfo] = {}  # the most recently used is the last
        for path in sorted(self.directory.iterdir(), key=lambda path: path.stat().st_mtime):
            if NAME.fullmatch(path.name):
                found = path.stat()
                self._infos[path.name] = SnapshotInfo(path.name, found.st_size, found.st_mtime)

    def __contains__(self, id: str) -> bool:
        return id in self._infos

    @property
    def bytes(self) -> int:
        return sum(info.bytes for info in self._infos.values())

    def pin(self, id: str) -> None:
        """Keeps a snapshot until `unpin` is called as often. ValueError if there is none."""
        self._check(id)
        self._pins[id] += 1

    def unpin(self, id: str) -> None:
        assert self._pins[id] > 0, id
        self._pins[id] -= 1

    async def put(self, content: bytes, at: float, max_bytes: int | None = None) -> SnapshotInfo:
        """Stores an archive. at: seconds since the epoch. max_bytes: total size of all, including
        this one; None: that of the store. SandboxError if there is no room; NodeFull if the disk
        has none."""
        id = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
        async with self._writing:  # one at a time, because each relies on the room that it made
            if id in self._infos:
                return self._use(id)
            size = held_bytes(content)
            try:
                self._make_room(size, self.max_bytes if max_bytes is None else max_bytes)
                await asyncio.to_thread(write_atomically, self.directory / id, [content])
            except BaseException as error:
                self._forget(content)
                if isinstance(error, OSError) and error.errno in FULL:
                    raise NodeFull(
                        f"the disk of the server has no room for a snapshot of {size} bytes"
                    ) from error
                raise
            info = self._infos[id] = SnapshotInfo(id, size, at)
            return info

    async def get(self, id: str) -> bytes:
        """Returns the archive. ValueError if there is none; SandboxError if it is damaged."""
        self.pin(id)
        try:
            content = await asyncio.to_thread((self.directory / id).read_bytes)
        except OSError as error:
            raise _unreadable(id, error) from error
        finally:
            self.unpin(id)
        if await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest()) != id:
            raise SandboxError(f"snapshot {id[:12]} is damaged: {self.directory / id}")
        self._use(id)
        return content

    async def get_reference(self, id: str) -> bytes:
        """As `get`. SandboxError also for an archive of files, which is not read into memory."""
        if self.file_bytes(id) > MAX_REFERENCE:
            raise SandboxError(f"snapshot {id[:12]} is of a sandbox in memory, not of one on disk")
        return await self.get(id)

    def file_bytes(self, id: str) -> int:
        """The size of the archive itself, or of the `Reference`. Errors: as `get`."""
        self._check(id)
        try:
            return (self.directory / id).stat().st_size
        except OSError as error:
            raise _unreadable(id, error) from error

    def close(self) -> None:
        if self._temporary:
            self._temporary.cleanup()

    def _check(self, id: str) -> None:
        if id not in self._infos:
            raise ValueError(
                f"there is no snapshot {id!r:.80}: never taken, or removed to make room"
            )

    def _use(self, id: str) -> SnapshotInfo:
        info = self._infos[id] = self._infos.pop(id)
        return info

    def _make_room(self, size: int, max_bytes: int) -> None:
        room = max_bytes - self.bytes
        victims = []
        for id, info in self._infos.items():
            if room >= size:
                break
            if not self._pins[id]:
                victims.append(id)
                room += info.bytes
        if room < size:
            raise SandboxError(
                f"a snapshot of {size} bytes does not fit beside those in use: "
                f"raise snapshot_mb ({max_bytes >> 20}) or stop sandboxes"
            )
        for id in victims:
            del self._infos[id]
            path = self.directory / id
            with contextlib.suppress(FileNotFoundError):
                if is_reference(head := _head(path)):
                    self._forget(head)
                path.unlink()
            self._record("snapshot_removed", f"{id} was removed to make room", snapshot=id)


def _unreadable(id: str, error: OSError) -> SandboxError:
    return SandboxError(f"snapshot {id[:12]} cannot be read: {error}")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_REFERENCE)


class SnapshotStores:
    """A store for each owner of sandboxes, so that nobody's snapshots make room for another's, and
    nobody can use another's. max_bytes: of each. forget: as in `SnapshotStore`."""

    def __init__(
        self,
        directory: str,
        max_bytes: int,
        record: Record,
        forget: Callable[[bytes], None] = lambda content: None,
    ):
        self.max_bytes, self._record, self._forget = max_bytes, record, forget
        self._memory = Memory(MAX_HELD)
        self._nobodys = SnapshotStore(directory, max_bytes, record, forget)
        self._stores = {"": self._nobodys}

    def of(self, owner: str) -> SnapshotStore:
        if owner not in self._stores:
            # The prefix makes a directory's name of any owner, even of "..".
            directory = str(self._nobodys.directory / f"of-{quote(owner, safe='')}")
            store = SnapshotStore(directory, self.max_bytes, self._record, self._forget)
            self._stores[owner] = store
        return self._stores[owner]

    @contextlib.asynccontextmanager
    async def memory(self, owner: str, size: int) -> AsyncIterator[None]:
        """Waits until the pool may hold another archive of `size` bytes for `owner`, and holds it
        for the duration of the block, which must not wait for a client or for another archive."""
        # The owner's share first: who waits for it keeps nothing from the others.
        async with self.of(owner).memory.hold(size), self._memory.hold(size):
            yield

    @contextlib.asynccontextmanager
    async def archive(self, owner: str, id: str) -> AsyncIterator[bytes]:
        """As `SnapshotStore.get`, within the bounds of `memory`."""
        store = self.of(owner)
        async with self.memory(owner, store.file_bytes(id)):
            yield await store.get(id)

    def close(self) -> None:
        self._nobodys.close()  # its directory contains the others


def _temporary_directory() -> tempfile.TemporaryDirectory:
    """Creates a directory, and removes those whose owners were killed before they could do so."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(ValueError):  # not named by us
            owner = Owner.parse(path.name.removeprefix(PREFIX).rpartition("-")[0])
            if owner.is_here() and owner.is_dead():
                shutil.rmtree(path, ignore_errors=True)  # another pool may be removing it as well
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{Owner.current()}-")
