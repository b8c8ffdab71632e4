"""Single processes of the agent, outside of its sessions: commands with their input, output and
exit code, and tar, which packs and unpacks archives of the agent's files."""

import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from typing import Any

from . import files, wire
from .files import WORK
from .link import RunnerStream
from .loop import READ, WRITE, Loop
from .processes import Agent, Child
from .session import MAX_PIPE
from .wire import CHUNK, HeadAndTail

GRACE_S = 2.0
EXIT_TIMED_OUT = 124
SCRIPT_FD = 197  # below those of sessions
# Bash reads text of known length in blocks.
READ_SCRIPT = (
    f'LC_ALL=C IFS= builtin read -r -N "$1" -u {SCRIPT_FD}; shift; '
    f'builtin eval "$REPLY" {SCRIPT_FD}<&-'
)
CHANGED = 1  # tar's exit code if a file, such as a log, changed while it was packed


class Job:
    """A process and its standard streams.

    request: argv, or a `script` for bash, None otherwise; cwd; env; user (empty: the agent's);
    timeout (seconds, None for no limit); output_bytes (head and tail of stdout and of stderr are
    kept up to this size each; None: everything is sent, as fast as the host receives it); terminal
    ((rows, columns), or None for pipes).
    """

    def __init__(self, agent: Agent, loop: Loop, stream: RunnerStream, request: dict):
        self._agent, self._loop, self._stream, self._request = agent, loop, stream, request
        self._terminal: int | None = None
        account = files.find(request["user"]) if request["user"] else None
        theirs = self._open_terminal() if request["terminal"] else self._open_pipes()
        argv, self._script = request["argv"], None
        if request["script"] is not None:
            self._script = Script(loop, request["script"])
            argv, theirs[SCRIPT_FD] = self._script.argv, self._script.theirs
        try:
            self.child = agent.spawn(
                argv, theirs, request["cwd"], request["env"], bool(request["terminal"]), account
            )
        except BaseException:
            self._close()
            raise
        finally:
            for fd in set(theirs.values()):
                os.close(fd)
        keep = request["output_bytes"]
        self._kept = {fd: HeadAndTail(keep) for fd in self._outputs if keep is not None}

    def _open_pipes(self) -> dict[int, int]:
        stdin_r, self._stdin = os.pipe()
        stdout_r, stdout_w = os.pipe()
        stderr_r, stderr_w = os.pipe()
        self._outputs = {stdout_r: wire.DATA, stderr_r: wire.ERROR}
        for fd in (self._stdin, *self._outputs):
            os.set_blocking(fd, False)
        return {0: stdin_r, 1: stdout_w, 2: stderr_w}

    def _open_terminal(self) -> dict[int, int]:
        self._terminal, theirs = os.openpty()
        self._stdin = os.dup(self._terminal)
        self._outputs = {self._terminal: wire.DATA}
        self.resize(*self._request["terminal"])
        os.set_blocking(self._terminal, False)
        return {0: theirs, 1: theirs, 2: theirs}

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def signal(self, number: int) -> None:
        """Sends a signal to the job's process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)

    def kill(self) -> None:
        """Kills the job and everything that it started."""
        self._agent.kill_tree(self.child)

    async def run(self) -> dict:
        """Returns the outcome, once the process has ended and its output is sent.

        Does not wait for other processes, such as background ones, that still write to its pipes.
        """
        feeding = self._loop.spawn(self._feed())
        pumps = [self._loop.spawn(self._pump(fd)) for fd in self._outputs]
        seconds = self._request["timeout"]
        deadline = None if seconds is None else time.monotonic() + seconds
        timed_out = not await self.child.ended.wait(deadline)
        if timed_out:
            self.signal(signal.SIGTERM)
            await self.child.ended.wait(time.monotonic() + GRACE_S)
            self.kill()
            await self.child.ended.wait()
        self._loop.cancel(feeding)
        for pump in pumps:
            self._loop.nudge(pump)
            await pump.over.wait()
        for fd, kept in self._kept.items():
            await self._stream.send(bytes(kept.head) + kept.tail(), self._outputs[fd])
        self._close()
        return {
            "exit_code": EXIT_TIMED_OUT if timed_out else self.child.exit_code,
            "timed_out": timed_out,
            "kept": [[len(kept.head), kept.omitted] for kept in self._kept.values()],
        }

    async def show(self, stream: RunnerStream) -> dict:
        """Sends what is kept so far of standard output, and then of standard error."""
        shown = [bytes(kept.head) + kept.tail() for kept in self._kept.values()]
        kept = [[len(kept.head), kept.omitted] for kept in self._kept.values()]
        for data in shown:
            await stream.send(data)
        return {"stdout_bytes": len(shown[0]), "kept": kept}

    async def _feed(self) -> None:
        while data := await self._stream.receive():
            unfed = memoryview(data)
            while unfed:
                try:
                    unfed = unfed[os.write(self._stdin, unfed) :]
                except BlockingIOError:
                    await self._loop.ready(self._stdin, WRITE)
                except OSError:  # the process does not read any more
                    break
        if self._terminal is None:
            os.close(self._stdin)
            self._stdin = -1

    async def _pump(self, fd: int) -> None:
        """Passes on what comes out of `fd`. When the process has ended, only what a pipe may hold:
        others that write to it could do so for ever."""
        left = MAX_PIPE
        while left > 0:
            if self.child.exit_code is None:
                await self._loop.ready(fd, READ)  # where it is ready, too: others get their turn
            has_ended = self.child.exit_code is not None
            try:
                chunk = os.read(fd, wire.CHUNK)
            except BlockingIOError:
                if has_ended:
                    return
                continue
            except OSError:  # a terminal reports that its last writer is gone
                return
            if not chunk:
                return
            if has_ended:
                left -= len(chunk)
            if self._kept:
                self._kept[fd].add(chunk)
            else:
                await self._stream.send(chunk, self._outputs[fd])

    def _close(self) -> None:
        if self._script:
            self._script.close()
        for fd in {self._stdin, *self._outputs} - {-1}:
            os.close(fd)


class Script:
    """A command line for bash that is longer than an argument may be, and comes through a pipe.

    argv: of the bash. theirs: its end of the pipe, for SCRIPT_FD.
    """

    def __init__(self, loop: Loop, text: str):
        self._loop, content = loop, text.encode("utf-8", "replace")
        self.argv = ["bash", "-c", READ_SCRIPT, "bash", str(len(content))]
        self.theirs, self._ours = os.pipe()
        os.set_blocking(self._ours, False)
        self._feeding = loop.spawn(self._feed(memoryview(content)))

    async def _feed(self, unfed: memoryview) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended before
            while unfed:
                try:
                    unfed = unfed[os.write(self._ours, unfed) :]
                except BlockingIOError:
                    await self._loop.ready(self._ours, WRITE)

    def close(self) -> None:
        self._loop.cancel(self._feeding)
        os.close(self._ours)


class Archives:
    """Sends and receives archives. Errors: RuntimeError if tar fails."""

    def __init__(self, loop: Loop, agent: Agent):
        self._loop, self._agent = loop, agent

    async def pack(
        self, directory: str, words: list[str], request: dict[str, Any], stream: RunnerStream
    ) -> dict:
        """Sends an archive of what the agent may read. words: tar arguments: which files."""
        argv = ["tar", "--create", "--sparse", "--ignore-failed-read", "--directory", directory]
        archive_r, archive_w = os.pipe()
        child = self._spawn([*argv, *words], {1: archive_w}, archive_r)
        room = request["max_bytes"]
        with open(archive_r, "rb", buffering=0) as archive:
            while room >= 0:
                await self._loop.ready(archive_r, READ)
                if not (chunk := archive.read(CHUNK)):
                    break
                await stream.send(chunk)
                room -= len(chunk)
        await child.ended.wait()  # past max_bytes, the closed pipe ends it
        if room < 0:
            raise RuntimeError(f"the archive is longer than {request['max_bytes']} bytes")
        return _success("tar --create", child, CHANGED)

    async def unpack(self, directory: str, words: list[str], stream: RunnerStream) -> dict:
        """Unpacks the archive that `stream` brings. words: tar arguments: whose the files are."""
        argv = ["tar", "--extract", "--preserve-permissions", *words, "--directory", directory]
        archive_r, archive_w = os.pipe()
        child = self._spawn(argv, {0: archive_r}, archive_w)
        with contextlib.suppress(BrokenPipeError), open(archive_w, "wb", buffering=0) as archive:
            while data := await stream.receive():
                unsent = memoryview(data)
                while unsent:
                    unsent = unsent[archive.write(unsent) or 0 :]
                    if unsent:
                        await self._loop.ready(archive_w, WRITE)
        await child.ended.wait()
        return _success("tar --extract", child)

    def _spawn(self, argv: list[str], theirs: dict[int, int], ours: int) -> Child:
        """theirs, ours: the ends of a pipe. Closes those that this process does not need."""
        try:
            with self._agent.unlimited():
                child = self._agent.spawn(argv, theirs, WORK)
        except BaseException:
            os.close(ours)
            raise
        finally:
            for fd in theirs.values():
                os.close(fd)
        os.set_blocking(ours, False)
        return child


def _success(what: str, child: Child, also: int = 0) -> dict:
    if child.exit_code not in (0, also):
        raise RuntimeError(f"{what} ended with status {child.exit_code}")
    return {}
