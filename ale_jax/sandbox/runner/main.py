"""Serves the requests of the host, one after another."""

import contextlib
import errno
import json
import os
import select
import signal
import time
from collections.abc import Iterator

from . import files, wire
from .files import TMP, WORK
from .processes import Agent
from .session import Command, Session

MAX_PIPE = 1 << 20  # the largest that an unprivileged process can make a pipe
TERM_GRACE_S = 0.3
MAX_POLL_S = 3600.0  # poll(2) takes no more than 2^31 ms
EXIT_TIMED_OUT = 124


class Runner:
    """Serves requests. Each method takes the request and its data, and returns the reply."""

    def __init__(self, agent: Agent):
        self.agent = agent
        self.session: Session | None = None
        self.directory = WORK  # where the next session starts
        self.wake_r, wake_w = os.pipe()
        for fd in (self.wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self, request: dict, data: Iterator[bytes]) -> dict:
        """A command that ends its session (`exit`) is answered with the session's exit code."""
        session = self._open_session()
        command = Command(session, b"".join(data), request["output_bytes"])
        timed_out = not self._pump(command, request["timeout"])
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session.pid, signal.SIGTERM)
            self._pump(command, TERM_GRACE_S)
            self.agent.kill()
        command.drain(MAX_PIPE)
        code = EXIT_TIMED_OUT if timed_out else command.exit_code
        if timed_out or code is None:
            self._end_session(session.directory if timed_out else WORK)
        head, tail, omitted = command.output.pieces()
        wire.send(head)
        wire.send(tail)
        code = session.exit_code if code is None else code
        return {"exit_code": code, "timed_out": timed_out, "head": len(head), "omitted": omitted}

    def _open_session(self) -> Session:
        self._reap()
        if self.session and self.session.exit_code is not None:
            self._end_session(WORK)
        if self.session is None:
            try:
                self.session = Session(self.agent, self.directory)
            except OSError:  # what the agent left running has taken every process, or all memory
                self.agent.kill()
                self.session = Session(self.agent, self.directory)
        return self.session

    def _end_session(self, next_directory: str) -> None:
        if self.session:
            self.session.close()
        self.session, self.directory = None, next_directory

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_r, wire.CHUNK)
        self.agent.reap()
        if self.session and self.session.pid in self.agent.exits:
            self.session.exit_code = self.agent.exits[self.session.pid]
        self.agent.exits.clear()

    def _pump(self, command: Command, seconds: float) -> bool:
        """Moves bytes until the command has ended, or its session has. False when out of time."""
        session, deadline = command.session, time.monotonic() + seconds
        actions = {
            session.output_r: lambda: command.drain(wire.CHUNK),
            session.reply_r: command.take_reply,
            session.feed_w: command.feed,
            self.wake_r: self._reap,
            0: lambda: os._exit(0),  # only a hang-up comes here: the owner is gone
        }
        poller = select.poll()
        for fd in actions:
            poller.register(fd, 0 if fd == 0 else select.POLLIN)
        poller.modify(session.feed_w, select.POLLOUT)
        while command.exit_code is None and session.exit_code is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for fd, event in poller.poll(min(left, MAX_POLL_S) * 1000 + 1):
                actions[fd]()
                hung_up = not event & (select.POLLIN | select.POLLOUT)
                if hung_up or (fd == session.feed_w and not command.unfed):
                    poller.unregister(fd)
        return True

    def kill(self, request: dict, data: Iterator[bytes]) -> dict:
        self.agent.kill()
        self._end_session(WORK)
        return {}

    def reset(self, request: dict, data: Iterator[bytes]) -> dict:
        self.kill(request, data)
        files.empty(WORK, 0o755)
        files.empty(TMP, 0o1777)
        return {}

    def read(self, request: dict, data: Iterator[bytes]) -> dict:
        wire.send(files.read_regular(request["path"], request["max_bytes"]))
        return {}

    def write(self, request: dict, data: Iterator[bytes]) -> dict:
        content, start = b"".join(data), 0
        for path, size in request["files"]:
            files.write_file(path, content[start : start + size])
            start += size
        return {}

    def snapshot(self, request: dict, data: Iterator[bytes]) -> dict:
        argv = ["tar", "--create", "--sparse", "--ignore-failed-read", "."]
        with self.agent.paused():
            return self._archive(argv, request["max_bytes"])

    def _archive(self, argv: list[str], max_bytes: int) -> dict:
        archive_r, archive_w = os.pipe()
        pid = self.agent.spawn(argv, {1: archive_w}, WORK)
        os.close(archive_w)
        room = max_bytes
        with open(archive_r, "rb", buffering=0) as archive:
            while room > 0 and (chunk := archive.read(wire.CHUNK)):
                wire.send(chunk)
                room -= len(chunk)
        code = os.waitpid(pid, 0)[1]  # past max_bytes, the closed pipe ends it
        return {} if code == 0 else {"error": f"tar --create ended with status {code}"}

    def restore(self, request: dict, data: Iterator[bytes]) -> dict:
        self.reset(request, data)
        archive_r, archive_w = os.pipe()
        argv = ["tar", "--extract", "--preserve-permissions", "--no-same-owner"]
        pid = self.agent.spawn(argv, {0: archive_r}, WORK)
        os.close(archive_r)
        with contextlib.suppress(BrokenPipeError), open(archive_w, "wb") as archive:
            for chunk in data:
                archive.write(chunk)
        code = os.waitpid(pid, 0)[1]
        return {} if code == 0 else {"error": f"tar --extract ended with status {code}"}


def main(config: dict) -> None:
    """config: the fields of `Agent`."""
    runner = Runner(Agent(**config))
    serve = {
        name: getattr(runner, name)
        for name in ("run", "kill", "reset", "read", "write", "snapshot", "restore")
    }
    os.umask(0o022)
    wire.send_reply({})
    while True:
        request, data = json.loads(wire.receive()), wire.receive_data()
        try:
            reply = serve[request["do"]](request, data)
        except OSError as error:
            reply = {"errno": error.errno, "error": error.strerror}
        except ValueError as error:  # a path that is no text for the kernel
            reply = {"errno": errno.EINVAL, "error": str(error)}
        except RuntimeError as error:
            reply = {"error": str(error)}
        for _ in data:  # what a failed request left unread
            pass
        wire.send_reply(reply)
