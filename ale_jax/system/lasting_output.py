"""stdout and stderr that fall silent when nobody reads them any more.

A display is no reason to end a run: whoever watched it may have quit `less`, or `tee` has ended
with the same Ctrl-C that the run has yet to answer with its exit code.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys

LOST = (errno.EPIPE, errno.EIO)  # the pipe's reader has ended; the terminal is gone


def keep_writable() -> None:
    """Makes this process's stdout and stderr drop what cannot be shown any more, so that nobody who
    prints has to know. They go to the same descriptors, and so do child processes'."""
    # None if the descriptor was closed when the process began.
    sys.stdout = sys.stdout and lasting(sys.stdout)
    sys.stderr = sys.stderr and lasting(sys.stderr)


def write_last_words(text: str) -> None:
    """Writes to stderr before the process ends at once, because its main thread may be stuck."""
    with contextlib.suppress(OSError):  # nobody reads them, and the process is to end all the same
        os.write(sys.stderr.fileno(), text.encode())


def lasting(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Returns another stream to the descriptor of `stream`, which must not be written to any
    more."""
    stream.flush()
    raw = _Lasting(stream.fileno(), "wb", closefd=False)
    is_unbuffered = stream.write_through  # as with `python -u`
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=is_unbuffered,
    )


class _Lasting(io.FileIO):
    def write(self, data: bytes) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in LOST:
                raise
            _silence(self.fileno())
            return len(data)


def _silence(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
