"""The persistent bash, and one command in it."""

import contextlib
import os
import signal

from .processes import Agent
from .wire import CHUNK

FEED_FD, REPLY_FD = 198, 199

# The agent's text is evaluated in this very shell, so that cwd, variables and functions stay.
# Assigning POSIXLY_CORRECT lets the special builtin `unset` win over a function of that name, and
# so takes back a redefined `builtin`. The loop's own work is a `while` condition, which `set -e`
# does not end, and its trace (`set -x`) goes nowhere. One line: bash counts the agent's from 1.
LOOP = (
    "builtin echo 1000 > /proc/self/oom_score_adj; "  # the runner is never the one to go
    "while { __status=$?; POSIXLY_CORRECT=1; unset -f builtin; unset POSIXLY_CORRECT; "
    r"""[[ ${__token-} ]] && builtin printf '%s %d %s\0' "$__token" "$__status" "$PWD" """
    f">&{REPLY_FD}; "
    f"IFS= builtin read -r -d '' -u {FEED_FD} __token && "
    f"IFS= builtin read -r -d '' -u {FEED_FD} __command; "
    "} 2>/dev/null; "
    f'do builtin eval "$__command" {FEED_FD}<&- {REPLY_FD}>&-; done'
)
# The loop comes in as its first input, because an agent sees this line whenever it lists processes.
BASH = ["bash", "--noprofile", "--norc", "-c", f"read -rd '' -u{FEED_FD}; eval \"$REPLY\"", "bash"]


class HeadAndTail:
    """The first and the last bytes of a stream; what lies between them is only counted."""

    def __init__(self, keep: int):
        self._head_limit = keep // 2
        self._tail_limit = keep - keep // 2
        self._head, self._tail, self._total = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        self._total += len(chunk)
        if len(self._tail) > self._tail_limit + CHUNK:
            self._trim()

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_limit)]

    def pieces(self) -> tuple[bytes, bytes, int]:
        """Returns head, tail, and the number of bytes left out between them."""
        self._trim()
        omitted = self._total - len(self._head) - len(self._tail)
        return bytes(self._head), bytes(self._tail), omitted


class Session:
    """One bash, and the pipes to it. exit_code is None while it lives."""

    def __init__(self, agent: Agent, directory: str):
        feed_r, self.feed_w = os.pipe()
        self.reply_r, reply_w = os.pipe()
        self.output_r, output_w = os.pipe()
        for fd in (self.feed_w, self.reply_r, self.output_r):
            os.set_blocking(fd, False)
        fds = {1: output_w, 2: output_w, FEED_FD: feed_r, REPLY_FD: reply_w}
        self.pid = agent.spawn(BASH, fds, directory)
        for fd in (feed_r, reply_w, output_w):
            os.close(fd)
        os.write(self.feed_w, LOOP.encode() + b"\0")
        self.directory = directory
        self.exit_code: int | None = None

    def close(self) -> None:
        for fd in (self.feed_w, self.reply_r, self.output_r):
            os.close(fd)


class Command:
    """One command in a session, from its text going in to its reply coming out."""

    def __init__(self, session: Session, text: bytes, output_bytes: int):
        # A reply that does not carry this command's token belongs to another one, or is forged.
        self.token = os.urandom(8).hex()
        self.session, self.output = session, HeadAndTail(output_bytes)
        self.unfed = memoryview(self.token.encode() + b"\0" + text + b"\0")
        self.reply = b""
        self.exit_code: int | None = None

    def feed(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self.unfed = self.unfed[os.write(self.session.feed_w, self.unfed) :]

    def drain(self, limit: int) -> None:
        """Takes what is in the output pipe; `limit`, because a live writer could go on forever."""
        with contextlib.suppress(BlockingIOError):
            while limit > 0 and (chunk := os.read(self.session.output_r, min(limit, CHUNK))):
                self.output.add(chunk)
                limit -= len(chunk)

    def take_reply(self) -> None:
        self.reply += os.read(self.session.reply_r, CHUNK)
        if not self.reply.endswith(b"\0") and len(self.reply) < CHUNK:
            return
        text = self.reply[:-1].decode("utf-8", "surrogateescape")
        token, code, directory = [*text.split(" ", 2), "", ""][:3]
        if token == self.token and len(code) <= 3 and code.isdecimal():
            self.exit_code, self.session.directory = int(code), directory
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.session.pid, signal.SIGKILL)
