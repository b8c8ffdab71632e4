"""An environment with a wheel of ours and what it requires, and nothing else of this one's."""

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.quick_compile import QUICK_COMPILE

ROOT = Path(__file__).parents[1]


def copied_source(copy: Path) -> Path:
    """Copies the tree, as a build writes beside what it builds."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    copy.mkdir()
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-", "--ignore-failed-read"],
        cwd=ROOT,
        input=tracked.stdout,
        check=True,
        capture_output=True,
    )
    subprocess.run(["tar", "--extract"], cwd=copy, input=archive.stdout, check=True)
    return copy


def built(source: Path, folder: Path, kind: str) -> Path:
    """A wheel. kind: "wheel", or "editable", which leads to the source."""
    code = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, folder], cwd=source, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


class FreshInstallation:
    """A new environment in `folder`, without pip and without the network."""

    def __init__(self, folder: Path, wheel: Path):
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        (site,) = (folder / "lib").glob("python*/site-packages")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
            (metadata,) = (n for n in packed.namelist() if n.endswith(".dist-info/METADATA"))
            required = message_from_bytes(packed.read(metadata)).get_all("Requires-Dist")
        for name in _with_theirs(required):
            _link(importlib.metadata.distribution(name), site)

    def run(self, *line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs Python with these arguments, in a folder, as a user's shell does."""
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        quick = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK_COMPILE}
        return subprocess.run(
            [self.bin / "python", *line],
            cwd=cwd,
            env=outside | quick,
            capture_output=True,
            text=True,
        )


def _with_theirs(required: Iterable[str]) -> Iterator[str]:
    """The names of these distributions, and of all that they require here."""
    waiting = [(Requirement(each), "") for each in required]
    seen = set()
    while waiting:
        each, of_extra = waiting.pop()
        if each.marker and not each.marker.evaluate({"extra": of_extra}):
            continue
        name = canonicalize_name(each.name)
        for extra in {"", *each.extras}:
            if (name, extra) not in seen:
                if not any(name == known for known, _ in seen):
                    yield name
                seen.add((name, extra))
                theirs = importlib.metadata.requires(name) or []
                waiting += [(Requirement(their), extra) for their in theirs]


def _link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    for file in distribution.files or []:
        if ".." not in file.parts:  # scripts lie elsewhere
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).symlink_to(file.locate())
