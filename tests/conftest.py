"""Strictness for every test: 8 virtual CPU devices, and no silent broadcasting between ranks.

ALE_SKIPS=fail, which .ci/run sets, fails a test that lacks something instead of skipping it.

Most of the work is compiling, so what was compiled outlives the tests, in PROGRAMS, and is shared
by the processes that they start and that `make test` divides them among. In memory, programs are
let go as soon as there are many.
"""

import ctypes
import gc
import os
import signal
import time
from collections import Counter
from pathlib import Path

from tests.left_processes import end_with_this_process
from tests.quick_compile import QUICK_COMPILE

# Started in the background by a script, we ignore Ctrl-C, and so would all whom the tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK_COMPILE}")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/ale-jax/tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import hypothesis
import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine breaks no promise
hypothesis.settings.load_profile("untimed")

pytest_plugins = ["tests.tiers"]

# Where the programs are, unless the user chose another folder, which we would not sweep.
PROGRAMS = Path("~/.cache/ale-jax/tests").expanduser()
UNUSED_DAYS = 14
# Programs that nobody will run again would be gigabytes by the end. So many are let go at once,
# beyond what a process was left with the last time.
MANY_BYTES = 256 << 20
LEFT_BYTES = pytest.StashKey[int]()

# They share the machine's loop devices, and one of them counts those.
TOGETHER = ("tests/sandbox/disk/",)

# Whole runs, and what takes as long.
FIRST = (
    *("tests/benchmarks/test_sandbox", "tests/sandbox/", "tests/system/", "tests/test_notebooks"),
    *("tests/learn/", "tests/launch/test_ray_slices"),
)

# Not for want of anything: the test is about the other runtime, another user, or another kernel;
# or about what no machine is asked to have.
ALWAYS_SKIPPED = (
    "containers are Docker's",
    "images are Docker's",
    "users are Docker's",
    "control groups are bubblewrap's",
    "root may write anywhere",
    "needs root to mount",
    "runsc is not installed",
    "cannot mount",
    "real weights are not part of the project",
    "is not in every image",
    "needs root to make a network",
)


def pytest_sessionstart(session):
    """Lets go of programs that nobody asked for lately, and sees that no process outlives us."""
    end_with_this_process()
    if not session.config.getoption("numprocesses"):  # else those that we start play the tests
        _hide_torch()
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for program in PROGRAMS.glob("*"):
        try:
            if program.stat().st_atime < oldest:
                program.unlink()
        except FileNotFoundError:
            pass  # another process was first


def _hide_torch():
    folders = [str(Path(__file__).parent / "without_torch"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))


def pytest_collection_finish(session):
    _let_go(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    is_last = nextitem is None or nextitem.path != item.path
    is_unfrozen = is_last and not gc.get_freeze_count()  # by a run in this process, at its end
    if is_unfrozen or _resident_bytes() > item.config.stash[LEFT_BYTES] + MANY_BYTES:
        _let_go(item.config)
    return result


def _let_go(config):
    """Drops the programs, and freezes what is left: a collection of the modules, to which all that
    was imported belongs, takes two thirds of a second."""
    jax.clear_caches()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed, and would not use it again
    config.stash[LEFT_BYTES] = _resident_bytes()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def pytest_collection_modifyitems(config, items):
    # So that no process is left alone with a slow file at the end. A single process keeps the order
    # that was asked for.
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


class ByFile(LoadScopeScheduling):
    """Divides the tests among processes by file, for their fixtures, in the order of collection."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return "together" if file.startswith(TOGETHER) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and _must_not_skip():
        reason = report.longrepr[2]
        if not any(known in reason for known in ALWAYS_SKIPPED):
            report.outcome = "failed"
            report.longrepr = f"ALE_SKIPS=fail: {reason}"
    return report


def pytest_terminal_summary(terminalreporter):
    """One line per reason: a runtime that is missing skips a thousand tests for the same one."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {' '.join(reason.split())}")


def _must_not_skip() -> bool:
    return os.environ.get("ALE_SKIPS") == "fail"
