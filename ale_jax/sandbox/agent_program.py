"""The project's own agent, `ale-agent`, as a folder that a sandbox without a network can start it
from:

    ale-agent    the program; it needs a python3 of the version that packed it, and nothing else
    lib/         its modules and the libraries that they import, compiled

Nothing is fetched: these are the files that this process itself would import. So the agent that is
trained is the one that serves afterwards, and the address of the folder is a hash of all of them.

    python -m ale_jax.sandbox.agent_program FOLDER    writes it, for images
"""

from __future__ import annotations

import argparse
import compileall
import functools
import hashlib
import os
import py_compile
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from ale_jax.sandbox.shared_folders import SharedFolders

HOME = "/opt/ale-agent"  # where it is in sandboxes
PROGRAM = f"{HOME}/ale-agent"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# The version is in the program's name, because a library is compiled for one. A sandbox without it
# answers with the exit code 127, as for any program that is not there.
LAUNCHER = f"""#!/usr/bin/env -S {PYTHON} -I -S
import sys
sys.path.insert(0, __file__.rpartition("/")[0] + "/lib")
from ale_jax.agent.assistant.main import main
sys.exit(main())
"""
PACKAGE = Path(__file__).parents[1]
OWN = ("__init__.py", "files.py", "strict_json.py", "agent/__init__.py", "agent/assistant")
# With all that they require. Of what rich requires, the agent uses nothing.
LIBRARIES, ALONE = ("httpx", "pydantic"), ("rich",)
ROOTS_DIRECTORY = Path("/var/lib/ale/agents")
BELONGS_IN_IMAGE = (
    "ale_agent is for bubblewrap without disk_mb: put the agent into the image "
    "(python -m ale_jax.sandbox.agent_program FOLDER), and leave ale_agent at False"
)


@functools.cache
def ensure() -> Path:
    """Returns the folder on this host; packs it if needed, which takes seconds. Errors: OSError."""
    directory, folders = _directory(), SharedFolders()
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    target = folders.ensure(directory / address(), pack)
    for other in directory.iterdir():
        if other.is_dir() and other.suffix == "" and other != target:
            folders.remove(other)  # of other code, if nobody uses it any more
    return target


def address() -> str:
    """A hash over the names and contents of all files, and over how they are packed."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name, source in sorted(_files().items()):
        digest.update(f"{name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:16]


def pack(folder: Path) -> None:
    """Writes the program into an empty folder."""
    for name, source in _files().items():
        target = folder / "lib" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    # The sandbox cannot write what it compiles, and would do so at each start.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder / "lib", quiet=2, stripdir=folder, invalidation_mode=mode)
    (folder / "ale-agent").write_text(LAUNCHER)
    for path in (folder, *folder.rglob("*")):  # the sandbox's user is another one
        path.chmod(0o755 if path.is_dir() or path.name == "ale-agent" else 0o644)


def _directory() -> Path:
    """Where this user can write, and root's sandboxes, which have users of their own, can read."""
    if os.getuid() == 0:
        return ROOTS_DIRECTORY
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ale" / "agents"


@functools.cache
def _files() -> dict[str, Path]:
    """By their names below lib/."""
    own = [path for part in OWN for path in _sources(PACKAGE / part)]
    found = {str(Path(PACKAGE.name) / path.relative_to(PACKAGE)): path for path in own}
    for name in (*_closure(LIBRARIES), *ALONE):
        files = metadata.files(name)
        if files is None:
            raise FileNotFoundError(f"{name} has no list of its files: install it with pip")
        for file in files:
            if file.suffix in (".py", ".so", ".pem") and ".." not in file.parts:
                found[str(file)] = Path(file.locate())
    return found


def _sources(path: Path) -> Iterator[Path]:
    return path.rglob("*.py") if path.is_dir() else iter((path,))


def _closure(names: tuple[str, ...]) -> list[str]:
    """These distributions and, without extras, what they require."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found[name] = None
        wanted = map(Requirement, metadata.requires(name) or ())
        waiting += [each.name for each in wanted if _applies(each)]
    return list(found)


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def main() -> None:
    parser = argparse.ArgumentParser("agent_program", description="packs ale-agent for an image")
    parser.add_argument("folder", type=Path, help="where to; it is made")
    pack(parser.parse_args().folder)


if __name__ == "__main__":
    main()
