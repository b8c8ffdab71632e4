"""Serves the requests of the host concurrently."""

import contextlib
import errno
import json
import os
import re
import resource
import struct
import time
from typing import Any

from . import files, wire
from .files import WORK, Account
from .guards import bound_terminals, guard
from .jobs import Archives, Job
from .link import Relay, RunnerLink, RunnerStream, use_socket
from .loop import Loop
from .processes import Agent
from .rights import Rights
from .session import EXIT_TIMED_OUT, Session
from .state import Mounts, SystemState, describe
from .usage import INSIDE, read_usage
from .wire import MAIN, HeadAndTail
from .world import World

SETTLE_S = 1.0
MAX_MEMORY = 1 << 30
SHM = {"/dev/shm": 0o1777}
NOT_ITS_OWNER = "--no-same-owner"
PACKED = ["--hard-dereference", "."]  # whoever unpacks it need not trust a hard link
Request = dict[str, Any]


class Runner:
    """Serves requests, with one method for each kind, which returns the outcome.

    parts: the directories that the agent may write to, each with its mode.

    If a method raises an OSError, the outcome has its number and text; if it raises a LookupError,
    RuntimeError or ValueError, or has too large a number, the outcome has its text.
    """

    def __init__(self, loop: Loop, agent: Agent, parts: dict[str, int], mounts: Mounts):
        self.loop, self.agent, self.parts = loop, agent, parts
        self.link = RunnerLink(loop, self.serve)
        self.relay = Relay(loop, self.link)
        agent.network_is_new = self.relay.listen_again
        self.archives = Archives(loop, agent)
        self.sessions: dict[str, Session] = {}
        self.directories: dict[str, str] = {}  # where to start sessions that must be reopened
        self.jobs: dict[str, Job] = {}
        self._mounts = mounts
        self._clear()
        self._initial = self._describe()

    def is_busy(self) -> bool:
        """Whether a command or a job is running."""
        return bool(self.jobs) or any(session.busy for session in self.sessions.values())

    async def serve(self, stream: RunnerStream, request: Request) -> None:
        try:
            outcome = await getattr(self, f"do_{request['do']}")(request, stream)
        except OSError as error:
            outcome = {"errno": error.errno, "error": error.strerror or str(error)}
        # A path or a number that the kernel cannot represent.
        except (ValueError, OverflowError, struct.error) as error:
            outcome = {"errno": errno.EINVAL, "error": str(error)}
        except (LookupError, RuntimeError) as error:
            outcome = {"error": str(error.args[0])}
        stream.end(outcome)

    # Sessions.

    async def do_open(self, request: Request, stream: RunnerStream) -> dict:
        """Opens a session. It gets the same `env` again whenever it is reopened.

        user: the user that it runs as; empty for the agent's.
        """
        name = request["session"]
        if name in self.sessions:
            raise LookupError(f"session {name!r} is open already")
        account = files.find(request["user"]) if request["user"] else None
        self.sessions[name] = Session(
            self.agent, self.loop, request["cwd"], request["env"], account
        )
        return {}

    async def do_run(self, request: Request, stream: RunnerStream) -> dict:
        """Runs a command. If it ends its session (`exit`), returns the session's exit code."""
        text = await stream.receive_all()
        name = request["session"]
        session = await self._session(name)
        live = stream if request["live"] else None
        stream.when_cancelled = session.give_up
        try:
            code, timed_out, output = await session.run(
                text, request["timeout"], request["output_bytes"], live
            )
            ended = code is None
            if ended:
                await session.child.ended.wait()
                directory = session.directory if timed_out else WORK
                if self.sessions.get(name) is session:  # otherwise it was closed or reset meanwhile
                    self._reopen_later(name, directory)
        finally:
            stream.when_cancelled = lambda: None
            session.settled.set()
        if not request["live"]:
            await stream.send(bytes(output.head))
        await stream.send(output.tail())
        if timed_out:
            code = EXIT_TIMED_OUT
        return {
            "exit_code": session.child.exit_code if code is None else code,
            "timed_out": timed_out,
            "session_ended": ended,
            "head": len(output.head),
            "omitted": output.omitted,
        }

    async def do_interrupt(self, request: Request, stream: RunnerStream) -> dict:
        session = self.sessions.get(request["session"])
        return {"interrupted": bool(session) and await session.interrupt(request["seconds"])}

    async def do_begin(self, request: Request, stream: RunnerStream) -> dict:
        """Starts a command on the session's terminal. It has no time limit."""
        text = await stream.receive_all()
        session = await self._session(request["session"])
        session.begin(text, request["rows"], request["columns"])
        return {}

    async def do_send(self, request: Request, stream: RunnerStream) -> dict:
        text = await stream.receive_all()
        await self._known(request["session"]).send(text)
        return {}

    async def do_expect(self, request: Request, stream: RunnerStream) -> dict:
        """Sends the output on the session's terminal up to a match of `pattern`; if that is None,
        up to the command's end. See `Session.expect`."""
        output, pattern = HeadAndTail(request["output_bytes"]), request["pattern"]
        waiting = self.loop.current
        assert waiting is not None
        stream.when_cancelled = lambda: self.loop.nudge(waiting)
        matched, code = await self._known(request["session"]).expect(
            None if pattern is None else re.compile(pattern.encode()), request["timeout"], output
        )
        await stream.send(bytes(output.head) + output.tail())
        return {
            "matched": matched,
            "exit_code": code,
            "head": len(output.head),
            "omitted": output.omitted,
        }

    async def do_close(self, request: Request, stream: RunnerStream) -> dict:
        name = request["session"]
        session = self._known(name)
        del self.sessions[name]
        self.directories.pop(name, None)
        self.agent.kill_tree(session.child)
        await session.child.ended.wait()
        session.close()
        return {}

    def _known(self, name: str) -> Session:
        if name not in self.sessions:
            raise LookupError(f"there is no session {name!r}")
        return self.sessions[name]

    async def _session(self, name: str) -> Session:
        """For the next command: a session that is not busy, opened again if its bash has ended.
        Waits for the end of a command that was given up."""
        if name in self.sessions:
            await self.sessions[name].settled.wait()
        if name == MAIN and name not in self.sessions:
            self.sessions[MAIN] = self._start_session(WORK, {}, None)
        session = self._known(name)
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
        """Reopens it on its next use, since it may never be used again."""
        self.directories[name] = directory

    def _start_session(
        self, directory: str, env: dict[str, str], account: Account | None
    ) -> Session:
        try:
            return Session(self.agent, self.loop, directory, env, account)
        except OSError:  # the agent's processes may have left no room, but a next command must run
            self.agent.kill()
            return Session(self.agent, self.loop, directory, env, account)

    # Single processes.

    async def do_exec(self, request: Request, stream: RunnerStream) -> dict:
        """Runs a `Job`. The requests below refer to it by `job`, its name, while it runs."""
        name = request["job"]
        if name in self.jobs:
            raise LookupError(f"job {name!r} exists already")
        job = self.jobs[name] = Job(self.agent, self.loop, stream, request)
        stream.when_cancelled = job.kill
        try:
            return await job.run()
        finally:
            del self.jobs[name]

    async def do_signal(self, request: Request, stream: RunnerStream) -> dict:
        """Sends a signal to a job. Signal 9 also kills everything that the job has started."""
        job = self._job(request)
        if request["signal"] == 9:
            job.kill()
        else:
            job.signal(request["signal"])
        return {}

    async def do_peek(self, request: Request, stream: RunnerStream) -> dict:
        """Sends what a job whose output is kept has written so far."""
        return await self._job(request).show(stream)

    async def do_resize(self, request: Request, stream: RunnerStream) -> dict:
        self._job(request).resize(request["rows"], request["columns"])
        return {}

    def _job(self, request: Request) -> Job:
        if request["job"] not in self.jobs:
            raise LookupError(f"job {request['job']!r} is not running")
        return self.jobs[request["job"]]

    # All processes.

    async def do_kill(self, request: Request, stream: RunnerStream) -> dict:
        """Kills all processes of the agent. Sessions are reopened in WORK on their next use."""
        self.agent.kill()
        for name, session in self.sessions.items():
            await session.child.ended.wait()
            self._reopen_later(name, WORK)
        return {}

    async def do_reset(self, request: Request, stream: RunnerStream) -> dict:
        """Kills all processes, forgets all sessions, and empties `parts` and shared memory. Fails
        if the state is not that of a new sandbox then."""
        await self.do_kill(request, stream)
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        self.directories.clear()
        self._clear()
        await self._prove_initial()
        return {}

    def _clear(self) -> None:
        for path, mode in (self.parts | SHM).items():
            files.empty(path, mode, self.agent.rights.uid, self._mounts.within(path))

    def _describe(self) -> SystemState:
        return describe(self.parts | SHM, self.agent.others, self._mounts)

    async def _prove_initial(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while differences := self._initial.differences(self._describe()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"it differs from a new sandbox: {differences:.300}")
            await self.loop.sleep(SETTLE_S / 100)  # the kernel frees some files a little later

    async def do_stats(self, request: Request, stream: RunnerStream) -> dict:
        disks = [os.statvfs(directory) for directory in request["directories"]]
        return {
            "processes": len(self.agent.others()),
            "disk_bytes": sum((disk.f_blocks - disk.f_bfree) * disk.f_frsize for disk in disks),
            "disk_limit_bytes": sum(disk.f_blocks * disk.f_frsize for disk in disks),
            **read_usage(INSIDE),
        }

    # Files.

    async def do_read(self, request: Request, stream: RunnerStream) -> dict:
        room = request["max_bytes"]
        with files.open_regular(request["path"]) as file:
            while data := file.read(min(room, wire.CHUNK)):
                await stream.send(data)
                room -= len(data)
        return {}

    async def do_write(self, request: Request, stream: RunnerStream) -> dict:
        await _write(request["files"], stream, WORK)
        return {}

    async def do_replace(self, request: Request, stream: RunnerStream) -> dict:
        """Replaces whatever is at `path` with a directory that contains only the files. Kills all
        processes first: one that lives could exchange what is looked at for something else."""
        path = request["path"]
        await self.do_kill(request, stream)
        files.empty_directory(path, self.agent.rights.uid, self._mounts.within(path))
        await _write(request["files"], stream, path)
        return {}

    async def do_list(self, request: Request, stream: RunnerStream) -> dict:
        """Sends a directory's entries as JSON in the stream's data."""
        limits = request["max_entries"], request["max_bytes"]
        entries = files.list_directory(request["path"], *limits)
        await stream.send(json.dumps(entries).encode())
        return {}

    async def do_snapshot(self, request: Request, stream: RunnerStream) -> dict:
        """Packs all of `parts` while the agent's processes are stopped."""
        with self.agent.paused():
            return await self.archives.pack("/", self._snapshot_words(), request, stream)

    async def do_pack(self, request: Request, stream: RunnerStream) -> dict:
        """Sends a tar archive of a directory."""
        return await self.archives.pack(request["path"], PACKED, request, stream)

    def _snapshot_words(self) -> list[str]:
        """Arguments for tar. Leaves out mounts of the runtime, which are not the agent's files."""
        mounted = {f"{path}/{name}" for path in self.parts for name in self._mounts.within(path)}
        words = [f"--exclude={path[1:]}" for path in mounted - self.parts.keys()]
        return ["--anchored", "--no-wildcards", *words, *(path[1:] for path in self.parts)]

    async def do_restore(self, request: Request, stream: RunnerStream) -> dict:
        await self.do_reset(request, stream)
        # Root's snapshot may contain files of other users. The owner is restored by number, since
        # the files that define user names are restored as well.
        is_root = self.agent.rights.uid == 0
        owner = ["--same-owner", "--numeric-owner"] if is_root else [NOT_ITS_OWNER]
        return await self.archives.unpack("/", owner, stream)

    async def do_unpack(self, request: Request, stream: RunnerStream) -> dict:
        """Unpacks a tar archive into a directory, with the agent's rights."""
        files.make_directories(request["path"])
        return await self.archives.unpack(request["path"], [NOT_ITS_OWNER], stream)

    # Connections.

    async def do_listen(self, request: Request, stream: RunnerStream) -> dict:
        self.relay.listen(request["port"])
        return {}

    async def do_unlisten(self, request: Request, stream: RunnerStream) -> dict:
        self.relay.unlisten(request["port"])
        return {}

    async def do_connect(self, request: Request, stream: RunnerStream) -> dict:
        await self.relay.connect(request["port"], stream)
        return {}


async def _write(sizes: list[tuple[str, int]], stream: RunnerStream, directory: str) -> None:
    """Writes files below `directory`. stream: the contents of all files, one after the other."""
    data = b""
    for path, size in sizes:
        with files.create(path, directory) as file:
            while size:
                data = data or await stream.receive()
                if not data:
                    raise RuntimeError(f"the content of {path!r:.80} is incomplete")
                taken, data = data[:size], data[size:]
                file.write(taken)
                size -= len(taken)


def main(config: dict) -> None:
    """config: the fields of `Rights`; the further fields of `Agent`, where `world` is the option of
    `World` or None; the `parts` of `Runner`; `memory_bytes` of all processes of the agent together,
    if this program must limit it, otherwise 0; and the `socket` to the host."""
    os.umask(0o022)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing itself is closed
            os.set_inheritable(number, number < 3)
    # Nothing that it does takes this much, as all data travels in pieces.
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if (path := config.pop("socket")) and (received := use_socket(path)):
        config["rights"] |= {"score": received[0], "groups": received[1:]}
    loop, parts, memory = Loop(), config.pop("parts"), config.pop("memory_bytes")
    hoards = memory > 0 or not os.path.exists("/proc/sysvipc")  # else nobody could free them
    rights = Rights(**config.pop("rights"), denies_hoards=hoards)
    shm = config.pop("world")
    world = World(shm) if shm else None
    mounts = Mounts((parts or {"/": 0}) | SHM)  # a root on disk is replaced as a whole
    agent = Agent(loop, rights, world, **config)
    runner = Runner(loop, agent, parts, mounts)
    if memory:
        loop.spawn(guard(loop, agent, memory, runner.is_busy))
    if not world:
        loop.spawn(bound_terminals(loop, agent, runner.is_busy))
    runner.link.greet()
    loop.run()
