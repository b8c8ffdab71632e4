"""Serves the requests of the host, many at a time."""

import contextlib
import errno
import json
import os
import socket
from typing import Any

from . import files, wire
from .files import WORK, Account
from .jobs import Job
from .link import Link, Relay, Stream
from .loop import READ, WRITE, Loop
from .processes import Agent, Child, guard, living
from .session import EXIT_TIMED_OUT, Session
from .usage import INSIDE, read_usage
from .wire import MAIN

NOT_ITS_OWNER = "--no-same-owner"
Request = dict[str, Any]


class Runner:
    """Serves requests: one method for each, which returns the outcome.

    parts: the directories that the agent may write to, each with its mode.
    OSError: the outcome is its number and text. LookupError, RuntimeError: is its text.
    """

    def __init__(self, loop: Loop, agent: Agent, parts: dict[str, int]):
        self.loop, self.agent, self.parts = loop, agent, parts
        self.link = Link(loop, self.serve)
        self.relay = Relay(loop, self.link)
        self.sessions: dict[str, Session] = {}
        self.directories: dict[str, str] = {}  # where a session that is opened again starts
        self.jobs: dict[str, Job] = {}

    def is_busy(self) -> bool:
        """Whether a command or a job runs."""
        return bool(self.jobs) or any(session.busy for session in self.sessions.values())

    async def serve(self, stream: Stream, request: Request) -> None:
        try:
            outcome = await getattr(self, f"do_{request['do']}")(request, stream)
        except OSError as error:
            outcome = {"errno": error.errno, "error": error.strerror or str(error)}
        except ValueError as error:  # a path that is no text for the kernel
            outcome = {"errno": errno.EINVAL, "error": str(error)}
        except (LookupError, RuntimeError) as error:
            outcome = {"error": str(error.args[0])}
        stream.end(outcome)

    # Sessions.

    async def do_open(self, request: Request, stream: Stream) -> dict:
        """A session `session`; what it has in `env` it has again when it is opened again.

        user: whose it is; empty: the agent's.
        """
        name = request["session"]
        if name in self.sessions:
            raise LookupError(f"session {name!r} is open already")
        account = files.find(request["user"]) if request["user"] else None
        self.sessions[name] = self._start_session(request["cwd"], request["env"], account)
        return {}

    async def do_run(self, request: Request, stream: Stream) -> dict:
        """A command that ends its session (`exit`) is answered with the session's exit code."""
        text = await stream.receive_all()
        name = request["session"]
        session = self._session(name)
        live = stream if request["live"] else None
        code, timed_out, output = await session.run(
            text, request["timeout"], request["output_bytes"], live
        )
        if timed_out or code is None:
            await session.child.ended.wait()
            directory = session.directory if timed_out else WORK
            if self.sessions.get(name) is session:  # else a reset has been here
                self._reopen_later(name, directory)
        if not request["live"]:
            await stream.send(bytes(output.head))
        await stream.send(output.tail())
        if code is None:
            code = EXIT_TIMED_OUT if timed_out else session.child.exit_code
        return {
            "exit_code": EXIT_TIMED_OUT if timed_out else code,
            "timed_out": timed_out,
            "head": len(output.head),
            "omitted": output.omitted,
        }

    async def do_interrupt(self, request: Request, stream: Stream) -> dict:
        session = self.sessions.get(request["session"])
        return {"interrupted": bool(session) and await session.interrupt(request["seconds"])}

    async def do_close(self, request: Request, stream: Stream) -> dict:
        session = self.sessions.pop(request["session"], None)
        if session is None:
            raise LookupError(f"there is no session {request['session']!r}")
        self.agent.kill_tree(session.child)
        await session.child.ended.wait()
        session.close()
        return {}

    def _session(self, name: str) -> Session:
        session = self.sessions.get(name)
        if session is None:
            if name != MAIN:
                raise LookupError(f"there is no session {name!r}")
            session = self.sessions[MAIN] = self._start_session(WORK, {}, None)
        if session.busy:
            raise LookupError(f"session {name!r} is busy")
        if not session.alive:
            self._reopen_later(name, self.directories.get(name, WORK))
        if name in self.directories:
            session.close()
            directory = self.directories.pop(name)
            session = self._start_session(directory, session.env, session.account)
            self.sessions[name] = session
        return session

    def _reopen_later(self, name: str, directory: str) -> None:
        """Not now: the process that this costs may never be asked for."""
        self.directories[name] = directory

    def _start_session(
        self, directory: str, env: dict[str, str], account: Account | None
    ) -> Session:
        try:
            return Session(self.agent, self.loop, directory, env, account)
        except OSError:  # what the agent left running has taken every process, or all memory
            self.agent.kill()
            return Session(self.agent, self.loop, directory, env, account)

    # Single processes.

    async def do_exec(self, request: Request, stream: Stream) -> dict:
        """See `Job`; `job` names it for the requests below, while it runs."""
        name = request["job"]
        if name in self.jobs:
            raise LookupError(f"job {name!r} exists already")
        job = self.jobs[name] = Job(self.agent, self.loop, stream, request)
        try:
            return await job.run()
        finally:
            del self.jobs[name]

    async def do_signal(self, request: Request, stream: Stream) -> dict:
        """signal 9 takes along all that the job has started."""
        job = self._job(request)
        if request["signal"] == 9:
            job.kill()
        else:
            job.signal(request["signal"])
        return {}

    async def do_resize(self, request: Request, stream: Stream) -> dict:
        self._job(request).resize(request["rows"], request["columns"])
        return {}

    def _job(self, request: Request) -> Job:
        if request["job"] not in self.jobs:
            raise LookupError(f"job {request['job']!r} does not run")
        return self.jobs[request["job"]]

    # All processes.

    async def do_kill(self, request: Request, stream: Stream) -> dict:
        """Every process of the agent's. Sessions open again, in WORK, when they are next used."""
        self.agent.kill()
        for name, session in self.sessions.items():
            await session.child.ended.wait()
            self._reopen_later(name, WORK)
        return {}

    async def do_reset(self, request: Request, stream: Stream) -> dict:
        """As new: all sessions are gone, and so is all that is in `parts`."""
        await self.do_kill(request, stream)
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        self.directories.clear()
        for path, mode in self.parts.items():
            files.empty(path, mode)
        return {}

    async def do_stats(self, request: Request, stream: Stream) -> dict:
        disks = [os.statvfs(directory) for directory in request["directories"]]
        return {
            "processes": len(living() - {1, os.getpid()}),
            "disk_bytes": sum((disk.f_blocks - disk.f_bfree) * disk.f_frsize for disk in disks),
            "disk_limit_bytes": sum(disk.f_blocks * disk.f_frsize for disk in disks),
            **read_usage(INSIDE),
        }

    # Files.

    async def do_read(self, request: Request, stream: Stream) -> dict:
        await stream.send(files.read_regular(request["path"], request["max_bytes"]))
        return {}

    async def do_write(self, request: Request, stream: Stream) -> dict:
        _write(request["files"], await stream.receive_all(), WORK)
        return {}

    async def do_replace(self, request: Request, stream: Stream) -> dict:
        """A directory, whatever was there, becomes one with nothing in it but the files."""
        content = await stream.receive_all()
        files.empty_directory(request["path"])
        _write(request["files"], content, request["path"])
        return {}

    async def do_list(self, request: Request, stream: Stream) -> dict:
        """Name, kind, size and mode of what is in a directory, as its own JSON in the data."""
        entries = files.list_directory(request["path"], request["max_entries"])
        await stream.send(json.dumps(entries).encode())
        return {}

    async def do_snapshot(self, request: Request, stream: Stream) -> dict:
        """Packs all of `parts` while everything of the agent's stands still."""
        with self.agent.paused():
            return await self._pack("/", self._snapshot_words(), request, stream)

    async def do_pack(self, request: Request, stream: Stream) -> dict:
        """A tar archive of a directory."""
        return await self._pack(request["path"], ["."], request, stream)

    def _snapshot_words(self) -> list[str]:
        """Without what the runtime has mounted within a part, which is not the agent's."""
        mounted = {f"{path}/{name}" for path in self.parts for name in files.mounts_in(path)}
        words = [f"--exclude={path[1:]}" for path in mounted - self.parts.keys()]
        return ["--anchored", "--no-wildcards", *words, *(path[1:] for path in self.parts)]

    async def _pack(
        self, directory: str, words: list[str], request: Request, stream: Stream
    ) -> dict:
        """Sends a tar archive, without what the agent may not read. words: for tar, what of."""
        argv = ["tar", "--create", "--sparse", "--ignore-failed-read", "--directory", directory]
        archive_r, archive_w = os.pipe()
        try:
            child = self.agent.spawn([*argv, *words], {1: archive_w}, WORK)
        finally:
            os.close(archive_w)
        os.set_blocking(archive_r, False)
        room = request["max_bytes"]
        with open(archive_r, "rb", buffering=0) as archive:
            while room >= 0:
                await self.loop.ready(archive_r, READ)
                if not (chunk := archive.read(wire.CHUNK)):
                    break
                await stream.send(chunk)
                room -= len(chunk)
        await child.ended.wait()  # past max_bytes, the closed pipe ends it
        if room < 0:
            raise RuntimeError(f"the archive is longer than {request['max_bytes']} bytes")
        return _success("tar --create", child)

    async def do_restore(self, request: Request, stream: Stream) -> dict:
        await self.do_reset(request, stream)
        # Root's files may be its users': by number, since names are among what is restored.
        owner = ["--same-owner", "--numeric-owner"] if self.agent.uid == 0 else [NOT_ITS_OWNER]
        return await self._unpack("/", owner, stream)

    async def do_unpack(self, request: Request, stream: Stream) -> dict:
        """Unpacks a tar archive into a directory, with the agent's rights."""
        files.make_directories(request["path"])
        return await self._unpack(request["path"], [NOT_ITS_OWNER], stream)

    async def _unpack(self, directory: str, words: list[str], stream: Stream) -> dict:
        argv = ["tar", "--extract", "--preserve-permissions", *words, "--directory", directory]
        archive_r, archive_w = os.pipe()
        try:
            child = self.agent.spawn(argv, {0: archive_r}, WORK)
        finally:
            os.close(archive_r)
        os.set_blocking(archive_w, False)
        with contextlib.suppress(BrokenPipeError), open(archive_w, "wb", buffering=0) as archive:
            while data := await stream.receive():
                unsent = memoryview(data)
                while unsent:
                    unsent = unsent[archive.write(unsent) or 0 :]
                    if unsent:
                        await self.loop.ready(archive_w, WRITE)
        await child.ended.wait()
        return _success("tar --extract", child)

    # Connections.

    async def do_listen(self, request: Request, stream: Stream) -> dict:
        self.relay.listen(request["port"])
        return {}

    async def do_connect(self, request: Request, stream: Stream) -> dict:
        await self.relay.connect(request["port"], stream)
        return {}


def _write(sizes: list[tuple[str, int]], content: bytes, directory: str) -> None:
    """The files, whose contents follow each other, below `directory`."""
    start = 0
    for path, size in sizes:
        files.write_file(path, content[start : start + size], directory)
        start += size


def _success(what: str, child: Child) -> dict:
    if child.exit_code:
        raise RuntimeError(f"{what} ended with status {child.exit_code}")
    return {}


def _use_socket(path: str) -> None:
    """Instead of the standard streams, which remain where it cannot be reached from in here."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(path)
        for stream in (0, 1):
            os.dup2(connection.fileno(), stream)


def main(config: dict) -> None:
    """config: the fields of `Agent`, the `parts` of `Runner`, and the `socket` to the host."""
    os.umask(0o022)
    if path := config.pop("socket"):
        _use_socket(path)
    loop, parts = Loop(), config.pop("parts")
    runner = Runner(loop, Agent(loop, **config), parts)
    if limit := runner.agent.memory_bytes:
        loop.spawn(guard(loop, limit, runner.is_busy))
    runner.link.greet()
    loop.run()
