"""Which code a process runs, so that a worker of other code is refused before it plays.

A world is generated and judged by the worker's code. With another version it would be another task
under the same name, and nothing else would show it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import ray

from ale_jax import errors

DIGEST_CHARS = 12
PACKAGE = Path(errors.__file__).parent


@functools.cache
def own_code() -> dict[str, str]:
    """Returns the versions of Python, Ray and ale-jax of this process, and a digest of ale-jax's
    files."""
    return {
        "python": platform.python_version(),
        "ray": ray.__version__,
        "ale-jax": version("ale-jax"),
        "source": source_digest(PACKAGE),
    }


def source_digest(package: Path) -> str:
    """Returns a digest of the names and contents of all Python files of a package.

    Worlds and configs are links in a checkout and folders where ale-jax is installed; both count.
    """
    digest = hashlib.sha256()
    folders = (Path(folder) for folder, _, _ in os.walk(package, followlinks=True))
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(package)} {content}\n".encode())
    return digest.hexdigest()[:DIGEST_CHARS]


def differing(theirs: dict[str, str], ours: dict[str, str]) -> str:
    """Returns how two processes' code differs, in words; empty if it is the same."""
    names = [name for name in ours if theirs.get(name) != ours[name]]
    if not names:
        return ""
    return ", and ".join(
        f"{who} {', '.join(f'{name} {code.get(name)}' for name in names)}"
        for who, code in (("it has", theirs), ("this process has", ours))
    )
