"""Runs tests with pytest inside a sandbox, and prints the verdict.

    python3 -I pytest_inside.py DIRECTORY_OF_TESTS TEST_FILE...

The reward is 1 if every collected test passed; skipped tests and tests that did not run have not
passed. The tests are passed as absolute paths, so that pytest looks for settings and conftest files
there and not in its working directory, which belongs to the agent.

The tests run in a child process, because they import the agent's code. The child passes only its
counts to this process, which alone holds stdout, and prints the verdict there after the child has
ended. Both processes are not dumpable: whatever the agent's code starts, and whatever user it has,
it can open neither their memory nor their descriptors. The counts come with a random number, so
writing to every descriptor is not enough. Code that runs in the child can find that number in its
memory and forge the counts; the docstring of the package says what follows from that.
"""

import ctypes
import json
import os
import struct
import sys

# No cache, which would be written next to the tests. `main` also disables third-party plugins.
OPTIONS = ("-p", "no:cacheprovider", "-q", "-ra", "--color=no")

PASSED, FAILED = 0, 1
NOT_HERE, NO_VERDICT = 69, 70
COUNTS = struct.Struct("<III")  # tests collected, files that could not be, tests passed
NONCE_BYTES = 16
PR_SET_DUMPABLE = 4


class Outcomes:
    """A plugin that counts results. broken: number of files that could not be collected."""

    def __init__(self):
        self.collected = self.broken = 0
        self.passed, self.not_passed = set(), set()

    def pytest_collectreport(self, report):
        self.broken += report.failed

    def pytest_collection_finish(self, session):
        self.collected = len(session.items)

    def pytest_runtest_logreport(self, report):
        if report.passed and not hasattr(report, "wasxfail"):
            self.passed.add(report.nodeid)
        else:
            self.not_passed.add(report.nodeid)

    def counts(self):
        return self.collected, self.broken, len(self.passed - self.not_passed)


def main(tests, *names):
    """Prints the verdict. Returns the exit code: 0 if all passed, 1 if not; others mean that there
    is no verdict, and then nothing is printed."""
    _hide_memory()
    counts_r, counts_w = os.pipe()
    nonce = os.urandom(NONCE_BYTES)
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        _end(_run_tests(tests, names, counts_w, nonce))
    os.close(counts_w)
    _, status = os.waitpid(child, 0)
    code, sent = os.waitstatus_to_exitcode(status), _read_at_once(counts_r)
    if len(sent) != NONCE_BYTES + COUNTS.size or not sent.startswith(nonce):
        ended = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        print(f"no verdict: the tests ended {ended} and sent no counts", file=sys.stderr)
        return NO_VERDICT
    collected, broken, passed = COUNTS.unpack(sent[NONCE_BYTES:])
    if code != (PASSED if all_passed(collected, broken, passed) else FAILED):
        print(f"no verdict: exit code {code} contradicts the counts", file=sys.stderr)
        return NO_VERDICT
    counts = {"collected": collected, "broken": broken, "passed": passed}
    print(json.dumps({"reward": float(code == PASSED), **counts}))
    return code


def all_passed(collected, broken, passed):
    return not broken and 0 < collected == passed


def _run_tests(tests, names, counts_w, nonce):
    """Runs in the child. Returns its exit code, and sends the counts if there is a verdict."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        import pytest
    except ImportError as error:
        print(f"pytest is not installed ({error}); type: apt-get install python3-pytest")
        return NOT_HERE
    outcomes = Outcomes()
    paths = [os.path.join(tests, name) for name in names]
    code = int(pytest.main([*OPTIONS, *paths], plugins=[outcomes]))
    counts = outcomes.counts()
    if code not in (PASSED, FAILED) and not outcomes.broken:
        return code
    os.write(counts_w, nonce + COUNTS.pack(*counts))
    return PASSED if code == PASSED and all_passed(*counts) else FAILED


def _read_at_once(fd):
    """What is in the pipe. Does not wait for its end, because processes that the agent's code has
    forked may still hold it."""
    os.set_blocking(fd, False)
    try:
        return os.read(fd, NONCE_BYTES + COUNTS.size + 1)
    except BlockingIOError:
        return b""


def _hide_memory():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def _end(exit_code):
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit(), which would run exit handlers and wait for threads of the agent's code.
    os._exit(exit_code)


if __name__ == "__main__":
    _end(main(*sys.argv[1:]))
