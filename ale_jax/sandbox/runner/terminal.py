"""The terminal of a session, on which a command runs while the host reads and answers it."""

import contextlib
import fcntl
import os
import re
import struct
import termios
import time
from collections.abc import Iterator

from .loop import READ, WRITE, Event, Loop, Task
from .wire import HeadAndTail

PIECE = 1 << 12  # read at a time, and the length of the longest match
SEND_S = 2.0
TIOCGPTN = 0x80045430


class PseudoTerminal:
    """A terminal that commands open by its path, since a running shell cannot be given descriptors.

    It stays open until its session ends, because a terminal that closes hangs up on the shell. It
    neither echoes nor changes line ends, so that its output is what the command wrote.
    """

    def __init__(self, loop: Loop):
        self._loop = loop
        self._ours, self._theirs = os.openpty()
        number = struct.unpack("I", fcntl.ioctl(self._ours, TIOCGPTN, bytes(4)))[0]
        self.path = f"/dev/pts/{number}"
        os.fchmod(self._theirs, 0o666)  # whichever user the session runs as
        attributes = termios.tcgetattr(self._theirs)
        attributes[1] &= ~termios.ONLCR
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._theirs, termios.TCSANOW, attributes)
        os.set_blocking(self._ours, False)
        self._unread = b""
        self._busy: set[int] = set()

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._theirs)
        self._ours = self._theirs = -1

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, size)

    def clear(self) -> None:
        """Drops all input and output that nobody has read."""
        termios.tcflush(self._theirs, termios.TCIOFLUSH)
        self._unread = b""

    async def send(self, data: bytes) -> None:
        """Errors: RuntimeError if the command does not read it."""
        unsent, deadline = memoryview(data), time.monotonic() + SEND_S
        with self._alone(WRITE, "send"):
            while unsent:
                try:
                    unsent = unsent[os.write(self._ours, unsent) :]
                except BlockingIOError:
                    if not await self._loop.ready(self._ours, WRITE, deadline):
                        raise RuntimeError("the command does not read its input") from None

    async def expect(
        self, pattern: re.Pattern[bytes] | None, over: Event, deadline: float, output: HeadAndTail
    ) -> bool:
        """Reads into `output` up to the end of a match of `pattern`. False if the command is over
        or the deadline comes first; what it has written until then is read, too."""
        before = b""
        with self._alone(READ, "expect"), self._woken_by(over):
            while piece := self._unread or await self._read(over, deadline):
                match = pattern and pattern.search(before + piece)
                end = max(0, match.end() - len(before)) if match else len(piece)
                output.add(piece[:end])
                self._unread = piece[end:]
                if match:
                    return True
                before = (before + piece)[-PIECE:]
        return False

    async def _read(self, over: Event, deadline: float) -> bytes:
        now = time.monotonic()
        if now >= deadline:  # somebody could write forever
            return b""
        # Also waits if the command is over, for no time, so that other tasks get their turn.
        await self._loop.ready(self._ours, READ, now if over.is_set else deadline)
        try:
            return os.read(self._ours, PIECE)
        except BlockingIOError:
            return b""

    @contextlib.contextmanager
    def _alone(self, direction: int, what: str) -> Iterator[None]:
        if direction in self._busy:
            raise LookupError(f"another {what!r} is not finished")
        self._busy.add(direction)
        try:
            yield
        finally:
            self._busy.remove(direction)

    @contextlib.contextmanager
    def _woken_by(self, event: Event) -> Iterator[None]:
        """Ends a wait of the current task when `event` is set."""
        nudging = self._loop.spawn(_nudge_when(self._loop, event, self._loop.current))
        try:
            yield
        finally:
            self._loop.cancel(nudging)


async def _nudge_when(loop: Loop, event: Event, task: Task) -> None:
    await event.wait()
    loop.nudge(task)
