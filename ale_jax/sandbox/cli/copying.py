"""`ale-sandbox cp`: files and directories, in and out."""

from __future__ import annotations

import posixpath
from pathlib import Path

from ale_jax.sandbox.sdk.client import RemoteSandbox, SandboxClient

MAX_FILE = 64 << 20  # what the service gives and takes at once
WORK = "/work"


def copy(client: SandboxClient, source: str, target: str) -> None:
    """Errors: ValueError if not exactly one of the two is ID:PATH; OSError, SandboxError."""
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
    """ID and path; None for a local path, which has a / before its first colon, or none."""
    id, colon, path = text.partition(":")
    if not colon or "/" in id or not id:
        return None
    return id, path or WORK


def _copy_in(box: RemoteSandbox, source: Path, path: str) -> None:
    if source.is_dir():
        box.upload(source, path)
        return
    content = source.read_bytes()
    inside = posixpath.join(WORK, path)
    if path.endswith("/") or _is_directory(box, inside):
        inside = posixpath.join(inside, source.name)
    if not inside.startswith(f"{WORK}/"):
        raise ValueError(f"{path!r} is not below {WORK}: single files are copied only there")
    box.write({inside.removeprefix(f"{WORK}/"): content})


def _copy_out(box: RemoteSandbox, path: str, target: Path) -> None:
    if _is_directory(box, path):
        box.download(path, target)
        return
    content = box.read(path, MAX_FILE)
    if len(content) == MAX_FILE:
        raise ValueError(f"{path!r} has {MAX_FILE} bytes or more: copy its directory")
    if target.is_dir():
        target = target / posixpath.basename(path)
    target.write_bytes(content)


def _is_directory(box: RemoteSandbox, path: str) -> bool:
    try:
        box.list(path)
    except FileNotFoundError:
        return False
    return True
