"""A process of a library that evaluates what a policy wrote: it reads, computes and answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

SCRATCH = "/dev/shm"
WRITTEN_TO = ("TMPDIR", "MPLCONFIGDIR")  # matplotlib complains of a home that it cannot write to


def started(
    argv: Sequence[str], env: Mapping[str, str], stderr: IO[Any] | int | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process in namespaces of its own, with pipes to its input and output. It has no
    network but its own, sees no other process, and writes only into SCRATCH and new files of /tmp,
    which are in memory and its own. It can read what we can, but tell nobody.

    Raises:
      ValueError: bubblewrap is not installed, or the program cannot be started.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ValueError(
            "answers are evaluated in a process that bubblewrap confines; "
            "type: apt-get install bubblewrap"
        )
    if shutil.which(argv[0]) is None:
        raise ValueError(f"python {argv[0]!r:.200} cannot be started")
    # Not --die-with-parent: the kernel takes the thread that starts it for the parent.
    walls = ["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    walls += ["--tmpfs", "/tmp"]  # where some libraries write, wherever they are told to
    for entry in os.scandir("/tmp"):
        walls += ["--ro-bind-try", entry.path, entry.path]
    return subprocess.Popen(
        [bwrap, *walls, "--chdir", SCRATCH, "--", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        bufsize=0,
        env={**env, **dict.fromkeys(WRITTEN_TO, SCRATCH)},
        start_new_session=True,  # a Ctrl-C at the terminal must not reach it
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with all that it has started; may be called again."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the session that it leads
    process.wait()
