"""One fault at a time in a copy of the tree, and the tests near its module run there."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import psutil
import pytest

from benchmarks.planted_faults.mutations import Mutation

LIMIT_S = 240.0  # of CPU time, so that a machine with other load reaches the same verdicts
WAITS = 4  # times LIMIT_S on the clock end a run that waits and does not compute
LOOK_S = 0.2
GRACE_S = 10.0
# A fault's run that takes more than twice as long as the unmutated one hangs.
HANGS_FROM = 0.5
QUICK = ("-m", "not slow")  # those of `make test`
OUT_OF_TIME = "not caught (time)"
# Of the summary; a line of a captured log may begin with ERROR, too.
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py\S*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Ran:
    """status: pytest's, None if the limit ended it. failed: the first test that did, or ""."""

    status: int | None
    seconds: float
    failed: str


@contextmanager
def copy_of_tree(root: Path) -> Iterator[Path]:
    """A temporary folder with the files that git tracks in `root`, as they are there now, and the
    environments beside them (.venv-gem), without which tests are skipped."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="planted-faults-", ignore_cleanup_errors=True) as name:
        for path in filter(None, listed.stdout.decode().split("\0")):
            if (root / path).is_file() or (root / path).is_symlink():
                (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / path, Path(name) / path, follow_symlinks=False)
        for environment in root.glob(".venv-*"):
            (Path(name) / environment.name).symlink_to(environment.resolve())
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


def nearest_tests(root: Path, module: str, seconds: Mapping[str, float]) -> list[str]:
    """The tests that judge a module: of those that mirror its package the file named after it,
    then those that import it, wherever they are, then the other mirroring ones. Among these, quick
    files come first, since time is limited, and files that were not timed last."""
    package, stem = package_of(module), PurePosixPath(module).stem
    mirroring = mirroring_tests(root, package)
    inside = re.escape(package.replace("/", "."))
    imports = re.compile(rf"{inside}(\.| import (\w+, )*){re.escape(stem)}\b")
    importing = {
        str(path.relative_to(root))
        for path in (root / "tests").rglob("test_*.py")
        if imports.search(path.read_text())
    }

    def order(test: str) -> tuple[int, float, str]:
        is_named = test in mirroring and PurePosixPath(test).stem == f"test_{stem}"
        distance = 0 if is_named else 1 if test in importing else 2
        return distance, seconds.get(test, math.inf), test

    return sorted({*mirroring, *importing}, key=order)


def seconds_of(report: Path) -> Counter[str]:
    """The seconds of each test file in a JUnit report, from the set-ups to the clean-ups."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        found[case.attrib["file"]] += float(case.attrib["time"])
    return found


def run_tests(root: Path, words: list[str], limit_s: float | None) -> Ran:
    """Runs pytest. words: test files, and options of pytest. limit_s: of CPU time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
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
            status = _wait(process, limit_s)
        finally:
            seconds = time.monotonic() - started
            _end_group(process)
        output.seek(0)
        failed = FAILED.search(output.read().decode(errors="replace"))
    return Ran(status, round(seconds, 1), failed[1] if failed else "")


def _wait(process: subprocess.Popen, limit_s: float | None) -> int | None:
    """Returns the exit status, or None as soon as the run has reached its limit."""
    started = time.monotonic()
    while limit_s is None or (
        _cpu_seconds(process.pid) < limit_s and time.monotonic() - started < WAITS * limit_s
    ):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S)
    return None


def _cpu_seconds(pid: int) -> float:
    """Counts the CPU time of a process and of those that it started."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):  # it has ended, and is waited for next
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # with children that have ended
    return total


def _end_group(process: subprocess.Popen) -> None:
    """An interrupt first, after which fixtures clean up what they started elsewhere."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):  # the group may be empty
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def try_fault(
    root: Path, module: str, mutation: Mutation, seconds: Mapping[str, float]
) -> tuple[str, Ran]:
    """The outcome (caught, hung, survived, not caught (time) or void) and the run with the fault.

    root: of a copy, which is as before afterwards. seconds: of each unmutated test file.
    """
    source = (root / module).read_bytes()
    tests = nearest_tests(root, module, seconds)
    try:
        (root / module).write_bytes(mutation.apply(source))
        ran = run_tests(root, ["-x", *QUICK, *tests], LIMIT_S)
    finally:
        (root / module).write_bytes(source)
    if ran.status is None:
        unmutated_s = sum(seconds.get(test, math.inf) for test in tests)
        return ("hung" if unmutated_s <= HANGS_FROM * LIMIT_S else OUT_OF_TIME), ran
    if ran.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return "survived", ran
    return _checked(root, ran, tests), ran


def _checked(root: Path, ran: Ran, tests: list[str]) -> str:
    """The outcome of a run that failed: caught only if what failed passes without the fault. Of a
    test with parameters, all are run. Of a file that could not be imported none is, and neither
    where pytest could not begin, as with a conftest.py that could not be imported."""
    if not ran.failed and ran.status != pytest.ExitCode.USAGE_ERROR:
        return "void"  # pytest itself was killed or broke, which may have nothing to do with it
    words = [ran.failed.partition("[")[0]] if ran.failed else tests
    options = [] if "::" in ran.failed else ["--collect-only"]
    unmutated = run_tests(root, [*options, *words], LIMIT_S)
    if unmutated.status is None:
        return OUT_OF_TIME
    return "void" if unmutated.status else "caught"
