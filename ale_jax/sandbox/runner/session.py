"""A persistent bash session and the command that it runs."""

import contextlib
import fcntl
import os
import re
import signal
import sys
import termios
import time
from collections.abc import Iterator

from .files import Account
from .kernel import now
from .link import RunnerStream
from .loop import READ, WRITE, Event, Loop, Task
from .processes import Agent
from .terminal import PseudoTerminal
from .wire import CHUNK, HeadAndTail

FEED_FD, REPLY_FD = 198, 199
MAX_PIPE = 1 << 20  # the largest pipe buffer that an unprivileged process can set
GRACE_S = 0.3
LOOK_S = 0.002  # between two looks whether bash has read a command
EXIT_TIMED_OUT = 124

# Ctrl-C must drop all of the command, also what follows the interrupted program, as it does in an
# interactive shell. This trap leaves every loop and function: `continue` and `break` leave the
# loops of the place where it runs, and a DEBUG trap repeats that and skips each further command
# (which is what `extdebug` and its status 1 do) until LOOP reads the status.
LEAVE = (
    "{ if [[ ${FUNCNAME-source} == source ]]; then builtin continue 999; else builtin break 999; fi"
    "; } 2> /dev/null"
)
SKIP = (
    "if [[ $BASH_COMMAND == __status=* ]]; then __interrupted=130; builtin trap - DEBUG; "
    f"builtin shopt -u extdebug; else ! {LEAVE}; fi"
)
INTERRUPT = (
    "if [[ ${__command-} ]]; then "  # not between commands, or the next one would be lost
    f"builtin shopt -s extdebug; builtin trap '{SKIP}' DEBUG; {LEAVE}; fi"
).replace("$", r"\$")

# The agent's text is evaluated in this very shell, so that cwd, variables and functions persist.
# Assigning POSIXLY_CORRECT makes the special builtin `unset` take precedence over a function of
# that name, so that a redefined `builtin` can be removed. The loop does its work in a `while`
# condition, which `set -e` does not end, and discards its trace (`set -x`). It
# is one line, so that bash counts the agent's lines from 1. The command is sent with its length,
# because bash reads text of known length from a pipe in blocks, but text that ends with a NUL byte
# by byte.
LOOP = (
    f'builtin trap "{INTERRUPT}" INT; '  # children do not inherit it
    "while { __status=${__interrupted:-$?}; __interrupted=; __command=; "
    "POSIXLY_CORRECT=1; unset -f builtin; unset POSIXLY_CORRECT; "
    r"""[[ ${__token-} ]] && builtin printf '%s %d %s\0' "$__token" "$__status" "$PWD" """
    f">&{REPLY_FD}; "
    f"IFS= builtin read -r -d '' -u {FEED_FD} __token && "
    f"IFS= builtin read -r -d '' -u {FEED_FD} __bytes && "
    f'LC_ALL=C IFS= builtin read -r -N "$__bytes" -u {FEED_FD} __command; '
    "} 2>/dev/null; "
    f'do builtin eval "$__command" {FEED_FD}<&- {REPLY_FD}>&-; done'
)
# The loop is sent as the first input, because an agent sees this line whenever it lists processes.
BASH = ["bash", "--noprofile", "--norc", "-c", f"read -rd '' -u{FEED_FD}; eval \"$REPLY\"", "bash"]


class Session:
    """One bash and the pipes to it. It runs one command at a time."""

    def __init__(
        self,
        agent: Agent,
        loop: Loop,
        directory: str,
        env: dict[str, str],
        account: Account | None = None,
    ):
        self._agent, self._loop, self.env, self.account = agent, loop, env, account
        feed_r, self._feed_w = os.pipe()
        self._reply_r, reply_w = os.pipe()
        self._output_r, output_w = os.pipe()
        self._open = [self._feed_w, self._reply_r, self._output_r]
        for fd in self._open:
            os.set_blocking(fd, False)
        self.directory = directory
        self.settled = Event(loop)  # not while a command that was given up has not ended
        self.settled.set()
        self._command: _Command | None = None
        self._running: Task | None = None
        self._terminal: PseudoTerminal | None = None
        self._begun: _Command | None = None  # the last command on the terminal
        self._dialogues, self._is_closed = 0, False
        fds = {1: output_w, 2: output_w, FEED_FD: feed_r, REPLY_FD: reply_w}
        try:
            self.child = agent.spawn(BASH, fds, directory, env, account=account)
        except BaseException:
            self.close()
            raise
        finally:
            for fd in (feed_r, reply_w, output_w):
                os.close(fd)
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the next command finds
            os.write(self._feed_w, LOOP.encode() + b"\0")

    @property
    def alive(self) -> bool:
        return self.child.exit_code is None

    @property
    def busy(self) -> bool:
        return self._command is not None

    def close(self) -> None:
        """Closes the descriptors, but only when nothing reads what its processes left in them: the
        numbers could be another session's by then."""
        self._is_closed = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._is_closed or self._command or self._dialogues:
            return
        while self._open:
            os.close(self._open.pop())
        if self._terminal:
            self._terminal.close()
            self._terminal = None

    def _over(self) -> None:
        """Ends the command for this session, which may take the next one."""
        self._command = None
        self._close_if_unused()

    @contextlib.contextmanager
    def _in_dialogue(self) -> Iterator[PseudoTerminal]:
        self._dialogues += 1
        try:
            yield self._terminal
        finally:
            self._dialogues -= 1
            self._close_if_unused()

    async def run(
        self, text: bytes, timeout: float, output_bytes: int, live: RunnerStream | None
    ) -> tuple[int | None, bool, HeadAndTail]:
        """Runs a command and sends the head of its output to `live` meanwhile.

        When its time is over, it is interrupted, and what it has started is killed, in the
        background, too. What earlier commands left running stays.

        Returns its exit code (None if the session ended with it), whether it timed out, and its
        output.
        """
        command = self._command = _Command(self._loop, output_bytes)
        self._running = self._loop.current
        tasks = [*self._start(command, text), self._loop.spawn(self._pump(command))]
        sender = live and self._loop.spawn(command.send_head(live))
        timed_out = not await command.over.wait(time.monotonic() + timeout)
        if timed_out:
            await self._stop(command, GRACE_S)
            self._agent.kill_younger(self.child, command.began)
        for task in tasks:
            self._loop.cancel(task)
        self._drain(command, MAX_PIPE)
        if sender:
            await command.all_sent()
        self._over()
        return command.exit_code if command.outlived else None, timed_out, command.output

    def give_up(self) -> None:
        """Ends the command that `run` runs, as if its time was over."""
        assert self._running is not None
        self.settled.clear()
        self._loop.nudge(self._running)

    def begin(self, text: bytes, rows: int, columns: int) -> None:
        """Starts a command on the session's terminal, for `send` and `expect`."""
        self._terminal = self._terminal or PseudoTerminal(self._loop)
        self._terminal.clear()
        self._terminal.resize(rows, columns)
        command = self._command = self._begun = _Command(self._loop, 0)
        quoted = b"'" + text.replace(b"'", rb"'\''") + b"'"
        opened = f" <>{self._terminal.path} >&0 2>&0".encode()
        tasks = self._start(command, b"builtin eval " + quoted + opened)
        self._loop.spawn(self._finish(command, tasks))

    async def send(self, data: bytes) -> None:
        """Errors: LookupError if no command runs on the terminal; RuntimeError."""
        if self._begun is None or self._begun.over.is_set:
            raise LookupError("no command runs on the session's terminal: begin one")
        with self._in_dialogue() as terminal:
            await terminal.send(data)

    async def expect(
        self, pattern: re.Pattern[bytes] | None, seconds: float, output: HeadAndTail
    ) -> tuple[bool, int | None]:
        """Returns whether the output of the command on the terminal matched before the time was
        over, and the command's exit code, None while it runs. See `PseudoTerminal.expect`.

        Errors: LookupError if there was no command on the terminal.
        """
        command = self._begun
        if command is None:
            raise LookupError("there was no command on the session's terminal: begin one")
        deadline = time.monotonic() + seconds
        with self._in_dialogue() as terminal:
            matched = await terminal.expect(pattern, command.over, deadline, output)
        if not command.over.is_set:
            return matched, None
        if command.exit_code is not None and command.outlived:
            return matched, command.exit_code
        await self.child.ended.wait()
        return matched, self.child.exit_code

    async def _finish(self, command: "_Command", tasks: list[Task]) -> None:
        await command.over.wait()
        for task in tasks:
            self._loop.cancel(task)
        self._over()

    async def interrupt(self, seconds: float) -> bool:
        """Sends SIGINT to the command and its children, and SIGKILL if they outlive `seconds`.

        Returns whether there was a command. If that does not end it, its session ends, too.
        """
        command = self._command
        if command is None:
            return False
        await self._stop(command, seconds)
        return True

    async def _stop(self, command: "_Command", grace: float) -> None:
        """Interrupts the command; kills what it has started if it outlives `grace` seconds; and
        kills the session if bash itself does not end the command then."""
        await self._taken_up(command, time.monotonic() + grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGINT)
        if await command.over.wait(time.monotonic() + grace):
            return
        self._agent.kill_younger(self.child, command.began)
        if not await command.over.wait(time.monotonic() + GRACE_S):
            self._agent.kill_tree(self.child)
            # Its bash may have reported the end of the command just before it was killed.
            command.outlived = False

    async def _taken_up(self, command: "_Command", deadline: float) -> None:
        """Returns when bash has read the command. Before that, it takes SIGINT for one that was
        meant for the command before, and ignores it (see INTERRUPT)."""
        while time.monotonic() < deadline:
            if command.is_fed and not _unread(self._feed_w):
                return
            if await command.over.wait(time.monotonic() + LOOK_S):
                return

    def _start(self, command: "_Command", text: bytes) -> list[Task]:
        """Has bash run a command. The tasks that this takes must be cancelled when it is over."""
        return [
            self._loop.spawn(each)
            for each in (
                self._feed(command, f"{command.token}\0{len(text)}\0".encode() + text),
                self._take_reply(command),
                self._watch(command),
            )
        ]

    async def _feed(self, command: "_Command", text: bytes) -> None:
        unfed = memoryview(text)
        while unfed:
            try:
                unfed = unfed[os.write(self._feed_w, unfed) :]
            except BlockingIOError:
                await self._loop.ready(self._feed_w, WRITE)
            except BrokenPipeError:
                return
        command.is_fed = True

    async def _pump(self, command: "_Command") -> None:
        while True:
            await self._loop.ready(self._output_r, READ)
            if not self._drain(command, CHUNK):
                return

    def _drain(self, command: "_Command", limit: int) -> bool:
        """Reads what is in the output pipe, at most about `limit` bytes, because a live writer
        could write forever. Returns False at end of file."""
        with contextlib.suppress(BlockingIOError):
            while limit > 0:
                chunk = os.read(self._output_r, min(limit, CHUNK))
                if not chunk:
                    return False
                command.add(chunk)
                limit -= len(chunk)
        return True

    async def _take_reply(self, command: "_Command") -> None:
        reply = b""
        while True:
            await self._loop.ready(self._reply_r, READ)
            part = os.read(self._reply_r, CHUNK)
            reply += part
            if not part:
                return
            if not reply.endswith(b"\0") and len(reply) < CHUNK:
                continue
            directory = command.finish(reply[:-1].decode("utf-8", "surrogateescape"))
            if directory is not None:
                self.directory = directory
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.child.pid, signal.SIGKILL)
            return

    async def _watch(self, command: "_Command") -> None:
        await self.child.ended.wait()
        command.over.set()


def _unread(pipe: int) -> int:
    """The bytes that a pipe, of which this is the end to write to, holds."""
    count = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder)


class _Command:
    """One command in a session, from when its text is sent until its reply is received."""

    def __init__(self, loop: Loop, output_bytes: int):
        # A reply without this command's token is forged or belongs to another command.
        self.token = os.urandom(8).hex()
        self.began = now()
        self.output = HeadAndTail(output_bytes)
        self.exit_code: int | None = None
        self.outlived = True  # the session outlived the command
        self.is_fed = False  # all of its text is in bash's pipe
        self.over = Event(loop)
        self._more, self._sent = Event(loop), Event(loop)
        self._complete = False

    def add(self, chunk: bytes) -> None:
        self.output.add(chunk)
        self._more.set()

    def finish(self, reply: str) -> str | None:
        """Handles the shell's reply; returns its directory, or None if the reply is invalid."""
        token, code, directory = [*reply.split(" ", 2), "", ""][:3]
        if token != self.token or len(code) > 3 or not code.isdecimal():
            return None
        self.exit_code = int(code)
        self.over.set()
        return directory

    async def send_head(self, stream: RunnerStream) -> None:
        sent = 0
        while True:
            if fresh := bytes(self.output.head[sent:]):
                await stream.send(fresh)
                sent += len(fresh)
            elif self._complete:
                self._sent.set()
                return
            else:
                self._more.clear()
                await self._more.wait()

    async def all_sent(self) -> None:
        self._complete = True
        self._more.set()
        await self._sent.wait()
