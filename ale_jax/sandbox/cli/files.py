"""`ale-sandbox cp`: copies a file or a directory into a sandbox or out of it, with permissions."""

from __future__ import annotations

import contextlib
import posixpath
from pathlib import Path

from ale_jax.sandbox.api import FileInfo, SandboxError
from ale_jax.sandbox.pool.api import SandboxGone
from ale_jax.sandbox.sdk.client import RemoteSandbox, SandboxClient
from ale_jax.sandbox.service import uploads

MAX_FILE = 64 << 20  # bytes of a single file that the service sends at once
WORK = "/work"


def copy(client: SandboxClient, source: str, target: str) -> None:
    """Copies files in or out. ValueError unless exactly one is ID:PATH; OSError, SandboxError."""
    inside = [_split(text) for text in (source, target)]
    if sum(each is not None for each in inside) != 1:
        raise ValueError(f"cp {source!r} {target!r}: one of the two must be ID:PATH")
    if inside[0]:
        id, path = inside[0]
        _copy_out(client.attach(id), path, Path(target))
    else:
        id, path = inside[1]
        _copy_in(client.attach(id), Path(source), path)


def _split(text: str) -> tuple[str, str] | None:
    """Returns ID and path; None for a local path, which has no colon or a / before the first."""
    id, colon, path = text.partition(":")
    if not colon or "/" in id or not id:
        return None
    return id, posixpath.join(WORK, path)


def _copy_in(box: RemoteSandbox, source: Path, path: str) -> None:
    if source.is_dir():
        box.upload(source, path)
        return
    there = _find(box, path)
    if path.endswith("/") or (there and there.kind == "directory"):
        path = posixpath.join(path, source.name)
    directory, name = posixpath.split(path)
    try:
        box.unpack(uploads.pack_file(source, name), directory)
    except SandboxGone:
        raise
    except SandboxError as error:
        raise SandboxError(f"{error}: is {directory!r} writable, and is there room?") from error


def _copy_out(box: RemoteSandbox, path: str, target: Path) -> None:
    found = _find(box, path)
    if found is None:
        raise FileNotFoundError(f"there is no {path!r} in sandbox {box.id}")
    if found.kind == "directory":
        box.download(path, target)
        return
    content = box.read(path, MAX_FILE)
    if len(content) == MAX_FILE:
        raise ValueError(f"{path!r} has {MAX_FILE} bytes or more: copy its directory")
    if target.is_dir():
        target = target / posixpath.basename(path)
    uploads.replace_file(target, content, found.mode)


def _find(box: RemoteSandbox, path: str) -> FileInfo | None:
    """What is at `path`, which need not exist."""
    directory, name = posixpath.split(path.rstrip("/"))
    if not name:
        return FileInfo("/", "directory", 0, 0o755)
    try:
        found = next((each for each in box.list(directory) if each.name == name), None)
    except FileNotFoundError:
        return None
    return found or _find_unlisted(box, posixpath.join(directory, name))


def _find_unlisted(box: RemoteSandbox, path: str) -> FileInfo | None:
    """As `_find`, for what its directory has beyond the number of entries that are listed."""
    name = posixpath.basename(path)
    with contextlib.suppress(FileNotFoundError):
        box.list(path)
        return FileInfo(name, "directory", 0, 0o755)
    with contextlib.suppress(FileNotFoundError):
        box.read(path, 1)
        return FileInfo(name, "file", 0, _mode(box, path))
    return None


def _mode(box: RemoteSandbox, path: str) -> int:
    """The permissions of a file. Errors: OSError if no program in the sandbox tells them."""
    told = box.exec(["stat", "-c", "%a", path])
    try:
        return int(told.stdout, 8)
    except ValueError as error:
        words = "its directory has too many entries to list, and stat does not work there"
        raise OSError(f"the permissions of {path!r} are unknown: {words}: move the file") from error
