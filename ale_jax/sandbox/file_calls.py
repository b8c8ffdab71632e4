"""A sandbox's files, from outside."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from ale_jax.sandbox.api import FileInfo
from ale_jax.sandbox.exchange import Exchange, Machine
from ale_jax.sandbox.output import OutputSink
from ale_jax.sandbox.runner import wire

FILES_S = 30.0
MAX_ENTRIES = 10_000
MAX_LISTING_BYTES = 8 << 20


class FileCalls(Exchange):
    """max_snapshot: bytes of an archive, at most."""

    def __init__(self, machine: Machine, max_snapshot: int):
        super().__init__(machine)
        self._max_snapshot = max_snapshot

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        if not path or "\0" in path or ".." in path.split("/"):
            raise ValueError(f"path {path!r} must name a file, without '..'")
        request = {"do": "read", "path": path, "max_bytes": max_bytes}
        sink = OutputSink(max_bytes)
        reply = await self._exchange(request, FILES_S, b"", sink)
        if "error" in reply:
            raise FileNotFoundError(f"{path!r} cannot be read as a regular file: {reply['error']}")
        return bytes(sink.data)

    async def write(self, files: Mapping[str, bytes]) -> None:
        await self._write({"do": "write"}, files, "/work")

    async def replace_directory(self, path: str, files: Mapping[str, bytes]) -> None:
        """Makes `path` (absolute) a directory that holds `files` (paths relative to it), no more,
        and that only the agent's user may enter.

        Whatever is there, or in its way, is removed: nothing of the agent's may be alive. Errors:
        as `write`; OSError for a place where nothing may be written.
        """
        plain = path.startswith("/") and posixpath.normpath(path) == path and "\0" not in path
        if not plain or path.startswith("//") or path == "/":
            raise ValueError(f"directory {path!r} must be absolute and below /, without '..'")
        await self._write({"do": "replace", "path": path}, files, path)

    async def _write(self, request: dict[str, Any], files: Mapping[str, bytes], to: str) -> None:
        for path in files:
            parts = path.split("/")
            if "\0" in path or any(part in ("", ".", "..") for part in parts):
                raise ValueError(f"path {path!r} must be relative to {to}, without '.' and '..'")
        request |= {"files": [(path, len(data)) for path, data in files.items()]}
        reply = await self._exchange(request, FILES_S, b"".join(files.values()))
        if "error" in reply:
            raise OSError(reply["errno"], f"cannot write into the sandbox: {reply['error']}")

    async def list(self, path: str = "/work") -> list[FileInfo]:
        """What is in a directory, at most MAX_ENTRIES. FileNotFoundError if it is none."""
        request = {"do": "list", "path": path, "max_entries": MAX_ENTRIES}
        sink = OutputSink(MAX_LISTING_BYTES)
        reply = await self._exchange(request, FILES_S, b"", sink)
        if "error" in reply:
            raise FileNotFoundError(f"{path!r} cannot be listed: {reply['error']}")
        return await self._made(lambda: [FileInfo(**each) for each in json.loads(sink.data)])

    async def pack(self, path: str) -> bytes:
        """A tar archive of a directory. What unpacks it must not believe it."""
        request = {"do": "pack", "path": path, "max_bytes": self._max_snapshot}
        return await self._archive(request)

    async def unpack(self, archive: bytes, path: str) -> None:
        """Unpacks a tar archive into a directory, with the agent's rights."""
        await self._ask({"do": "unpack", "path": path}, FILES_S, archive)

    async def snapshot(self, max_bytes: int | None = None) -> bytes:
        """As `api.Sandbox.snapshot`. max_bytes: SandboxError for an archive that is longer."""
        limit = self._max_snapshot if max_bytes is None else min(max_bytes, self._max_snapshot)
        return await self._archive({"do": "snapshot", "max_bytes": limit})

    async def restore(self, snapshot: bytes) -> None:
        await self._ask({"do": "restore"}, FILES_S, snapshot)

    async def _archive(self, request: dict[str, Any]) -> bytes:
        sink = OutputSink(self._max_snapshot + wire.CHUNK)
        await self._ask(request, FILES_S, b"", sink)
        return bytes(sink.data)
