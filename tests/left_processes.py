"""Ends what a test run has started when the run ends, however it ends.

    python tests/left_processes.py MARK

waits until its input ends, and then kills all processes whose environment has MARK. A signal at
the parent's death (prctl) would not reach those that the children start, and a process group would
not reach those that leave it; the environment is inherited by all of them.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path


def end_with_this_process() -> None:
    """Makes the processes that this one starts from now on, and those that they start, end with it.

    Another process sees to it, which is not a child of this one: tests count those.
    """
    mark = f"ALE_TESTS_{secrets.token_hex(8)}"
    # The end that is read ends with the last process that can write: with us, as no child keeps it.
    read, write = os.pipe()
    os.register_at_fork(after_in_child=lambda: os.close(write))
    subprocess.run([sys.executable, "-I", __file__, mark], stdin=read, check=True)
    os.close(read)
    os.environ[mark] = "1"


def marked(mark: str) -> set[int]:
    """The processes whose environment has `mark`; none of those that have ended."""
    found, entry = set(), f"{mark}=1".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if entry in environment.read_bytes().split(b"\0"):
                found.add(int(environment.parent.name))
    return found


def _watch(mark: str) -> None:
    if os.fork():
        os._exit(0)
    os.setsid()  # Ctrl-C in a terminal is not for us
    for output in (1, 2):  # somebody may read ours until its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    sys.stdin.buffer.read()
    while left := marked(mark):  # again, for what they started meanwhile
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _watch(sys.argv[1])
