"""The manifest of a checkpoint: what belongs to it, with sizes and SHA-256, so that damage is
noticed.

A pod's checkpoint may have hundreds of gigabytes. So each process hashes what it has written by
itself, which its machine may still have in memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale_jax.files import read_json, write_json

FORMAT = 2
MANIFEST_FILE = "manifest.json"

Digest = dict[str, int | str]  # bytes, sha256
Digests = dict[str, Digest]  # by the file's path below a folder

_OWN = re.compile(r"ocdbt\.process_(\d+)")  # where Orbax puts what each process writes


def file_digests(folder: Path, process: int = 0, processes: int = 1) -> Digests:
    """Returns the digests of the files below `folder` that fall to one of the processes: those
    that it wrote itself, and for the first process also those that all wrote together. Raises
    OSError if one of them cannot be read."""
    return {
        str(path.relative_to(folder)): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and _writer(path.relative_to(folder)) % processes == process
    }


def file_digest(path: Path) -> Digest:
    """Returns size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def write_manifest(checkpoint: Path, step: int, state: str, files: Digests) -> None:
    """Writes the manifest of a checkpoint, which makes it complete. state: the name of the state's
    folder."""
    content = {"format": FORMAT, "step": step, "state": state, "files": files}
    write_json(checkpoint / MANIFEST_FILE, content | {"sha256": _digest(content)})


def read_manifest(checkpoint: Path, step: int) -> dict[str, Any]:
    """Reads a manifest. Raises ValueError unless it is as it was written, for this step."""
    path = checkpoint / MANIFEST_FILE
    manifest = read_json(path)
    recorded = manifest.pop("sha256", None) if isinstance(manifest, dict) else None
    if recorded != _digest(manifest):
        raise ValueError(f"{path} is damaged")
    if manifest["step"] != step:
        raise ValueError(f"{path} belongs to step {manifest['step']}")
    return manifest


def require_same_files(checkpoint: Path, manifest: Mapping[str, Any], found: Digests) -> None:
    """Raises ValueError unless every file of the manifest is among those that were found."""
    for name, wanted in manifest["files"].items():
        if name not in found:
            raise ValueError(f"{checkpoint / name} is missing")
        if found[name] != wanted:
            raise ValueError(f"{checkpoint / name} is damaged")


def require_format(checkpoint: Path, manifest: Mapping[str, Any]) -> None:
    """Raises ValueError unless this version of the program reads the checkpoint's format."""
    if manifest["format"] != FORMAT:
        raise ValueError(
            f"{checkpoint} has format {manifest['format']}, this version reads format {FORMAT}: "
            "use the version that wrote it, or start a new run"
        )


def state_folder(checkpoint: Path) -> Path:
    """Returns the folder in which a complete checkpoint has its state."""
    return checkpoint / read_json(checkpoint / MANIFEST_FILE)["state"]


def _writer(path: Path) -> int:
    found = _OWN.fullmatch(path.parts[0])
    return int(found[1]) if found else 0


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
