"""One fault at a time in a copy of the tree, and the tests that mirror its package run there."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from benchmarks.planted_faults.mutations import Mutation

LIMIT_S = 120.0
# The unmutated tests of a package run once and to their end, or we would not know that they pass.
UNMUTATED_LIMIT_S = 1800.0
GRACE_S = 10.0
# A fault's run that takes more than twice as long as the unmutated one hangs.
HANGS_FROM = 0.5
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Ran:
    """status: pytest's, None if the limit ended it. failed: the first test that did, or ""."""

    status: int | None
    seconds: float
    failed: str


@contextmanager
def copy_of_tree(root: Path) -> Iterator[Path]:
    """A temporary folder with the files that git tracks in `root`, as they are there now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="planted-faults-", ignore_cleanup_errors=True) as name:
        for path in filter(None, listed.stdout.decode().split("\0")):
            if (root / path).is_file():
                (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / path, Path(name) / path)
        yield Path(name)


def package_of(module: str) -> str:
    return str(PurePosixPath(module).parent)


def mirroring_tests(root: Path, package: str) -> list[str]:
    """The test files that mirror a package: those of its folder in tests/. A package without such
    a folder has those of the nearest one above, and those below it that import the package."""
    own = Path("tests", *(part for part in Path(package).parts if part != "ale_jax"))
    folder = own
    while not _test_files(root, folder) and folder.parts:
        folder = folder.parent
    found = _test_files(root, folder)
    if folder != own:
        dotted = package.replace("/", ".")
        below = (root / folder).rglob("test_*.py")
        found |= {path for path in below if dotted in path.read_text()}
    return sorted(str(path.relative_to(root)) for path in found)


def _test_files(root: Path, folder: Path) -> set[Path]:
    return set((root / folder).glob("test_*.py"))


def nearest_first(root: Path, module: str, tests: list[str]) -> list[str]:
    """The file named after the module, then those that import it, then the others."""
    path = PurePosixPath(module)
    inside = re.escape(package_of(module).replace("/", "."))

    def distance(test: str) -> int:
        if PurePosixPath(test).stem == f"test_{path.stem}":
            return 0
        text = (root / test).read_text()
        imported = rf"{inside}(\.| import (\w+, )*){re.escape(path.stem)}\b"
        return 1 if re.search(imported, text) else 2

    return sorted(tests, key=lambda test: (distance(test), test))


def run_tests(root: Path, tests: list[str], limit_s: float) -> Ran:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    # Bytecode is kept by size and second, and would outlast a fault of the same size.
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    started = time.monotonic()
    # A file, as a pipe is not closed before the last process that inherited it ends.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            seconds = time.monotonic() - started
            _end_group(process)
        output.seek(0)
        failed = FAILED.search(output.read().decode(errors="replace"))
    return Ran(status, round(seconds, 1), failed[1] if failed else "")


def _end_group(process: subprocess.Popen) -> None:
    """An interrupt first, after which fixtures clean up what they started elsewhere."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):  # the group may be empty
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def try_fault(root: Path, module: str, mutation: Mutation, unmutated: Ran) -> tuple[str, Ran]:
    """root: of a copy, which is as before afterwards. The outcome: caught, hung, survived, or
    not caught (time)."""
    source = (root / module).read_bytes()
    tests = nearest_first(root, module, mirroring_tests(root, package_of(module)))
    try:
        (root / module).write_bytes(mutation.apply(source))
        ran = run_tests(root, tests, LIMIT_S)
    finally:
        (root / module).write_bytes(source)
    return outcome(ran, unmutated), ran


def outcome(ran: Ran, unmutated: Ran) -> str:
    if ran.status is None:
        ended_early = unmutated.seconds <= HANGS_FROM * LIMIT_S
        return "hung" if ended_early else "not caught (time)"
    return "caught" if ran.status else "survived"
