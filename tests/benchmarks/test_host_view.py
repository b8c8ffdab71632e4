"""How the tests and benchmarks of sandboxes look at processes."""

import os
import subprocess
import time

import pytest

from benchmarks.sandbox.host_view import descendants

pytestmark = pytest.mark.slow

CHURN = "while :; do (true) & (true) & (true) & wait; done"
LOOKS_S = 1.0


def test_processes_that_end_while_they_are_looked_for_are_no_error():
    with subprocess.Popen(["bash", "-c", CHURN]) as shell:
        try:
            until, seen = time.monotonic() + LOOKS_S, set()
            while time.monotonic() < until:
                seen |= set(descendants(os.getpid()))
        finally:
            shell.kill()
    assert shell.pid in seen
    assert len(seen) > 2  # some of those that end were seen alive
    assert shell.pid not in descendants(os.getpid())
