"""Which code a process runs, so that a worker of other code is refused before it plays.

A world is generated and judged by the worker's code. With another version it would be another task
under the same name, and nothing else would show it.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

import ray

from ale_jax import errors
from envs import registry

DIGEST_CHARS = 12
PACKAGES = (Path(errors.__file__).parent, Path(registry.__file__).parent)


@functools.cache
def own_code() -> dict[str, str]:
    """The versions of Python, Ray and ale-jax of this process, and a digest of ale-jax's files."""
    return {
        "python": platform.python_version(),
        "ray": ray.__version__,
        "ale-jax": version("ale-jax"),
        "source": source_digest(*PACKAGES),
    }


def source_digest(*packages: Path) -> str:
    """Of the names and contents of all Python files of these folders."""
    digest = hashlib.sha256()
    for package in packages:
        for file in sorted(package.rglob("*.py")):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{package.name}/{file.relative_to(package)} {content}\n".encode())
    return digest.hexdigest()[:DIGEST_CHARS]


def differing(theirs: dict[str, str], ours: dict[str, str]) -> str:
    """How two processes' code differs, in words; empty if it is the same."""
    names = [name for name in ours if theirs.get(name) != ours[name]]
    if not names:
        return ""
    return ", and ".join(
        f"{who} {', '.join(f'{name} {code.get(name)}' for name in names)}"
        for who, code in (("it has", theirs), ("this process has", ours))
    )
