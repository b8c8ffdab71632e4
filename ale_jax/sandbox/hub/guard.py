"""Runs a recipe's script, and ends it with all its processes when its result is no longer needed.

    python guard.py SECONDS COMMAND...

Its stdin is a pipe whose other end the requesting process holds open: when that process dies, for
whatever reason, the pipe closes and the script is ended. Other inherited descriptors (the image's
locks) stay open until the script has ended. Exit code: the script's, 128 + N after signal N,
TIMED_OUT after SECONDS.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

TIMED_OUT = 124
CANNOT_START = 126
LOOK_S = 0.02
# Between SIGTERM, after which a script can clean up, and SIGKILL.
GRACE_S = 5.0


def main(seconds: float, command: list[str]) -> int:
    try:
        script = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(error, flush=True)
        return CANNOT_START
    deadline = time.monotonic() + seconds
    while script.poll() is None:
        if time.monotonic() > deadline or select.select([sys.stdin], [], [], LOOK_S)[0]:
            _end(script)
            return TIMED_OUT
    _signal(script, signal.SIGKILL)  # ends what it left in the background
    return script.returncode if script.returncode >= 0 else 128 - script.returncode


def _end(script: subprocess.Popen) -> None:
    _signal(script, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        script.wait(GRACE_S)
    _signal(script, signal.SIGKILL)
    script.wait()


def _signal(script: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(script.pid, number)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
