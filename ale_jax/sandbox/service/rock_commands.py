"""`rock model-service ...`, which ROCK's client has its sandboxes execute: here the service does.

The client starts such a command with nohup, asks every few seconds whether the process lives
(`kill -0`), and reads its output from a file. All three are answered here, and nothing of it exists
in the sandbox, where an agent could put its own words in the place of the policy's. A command is
taken for one of these only if all of it is; anything else is for bash.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.relay import Carried, Dialer, carry
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.protocol import Refusal
from ale_jax.sandbox.service.rock_model import ModelCalls, ModelServer
from ale_jax.sandbox.service.rock_spec import RockRunBody
from ale_jax.sandbox.service.tenants import Ticket

NAME = "rock model-service"
PORT = 8080  # ROCK's
MAX_COMMAND = 1 << 20  # characters; the client writes an answer of more than 100 KiB to a file
MAX_KNOWN = 10_000  # sandboxes
MAX_PROCESSES = 64  # of one sandbox; the oldest are forgotten
MAX_WATCHED = 16  # processes of one sandbox
# The client asks again after 5 s or more if the process lives, and gives up after 10 s.
PATIENCE_S = 8.0
FIRST_PID = 1 << 22  # no process of Linux has such a number

NOHUP = re.compile(
    r"nohup (.*) < /dev/null > (\S+) 2>&1 & echo PIDSTART\$\{!\}PIDEND;disown", re.DOTALL
)
ASKS, READS = re.compile(r"kill -0 (\d+)"), re.compile(r"cat (/tmp/\S+)")
OWN_SESSION = re.compile(r"bash-\d+$")  # that the client opens for each command, under its clock
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
LARGE_ANSWER = re.compile(r"/tmp/anti_call_response_\d+\.json")
OPTIONS = {
    "start": {"--type", "--host", "--port"},
    "stop": set(),
    "watch-agent": {"--pid", "--host", "--port"},
    "anti-call-llm": {"--index", "--response", "--response-file"},
}
# Returns when process $1 has ended.
WATCH = 'while s=$(cat /proc/$1/stat 2> /dev/null) && [[ $s != *") Z "* ]]; do sleep 0.2; done'


def parse(command: str) -> list[list[str]] | None:
    """The words after `rock model-service` of each command; None if there is anything else."""
    try:
        words = shlex.split(command)
        if words[:2] == ["bash", "-c"] and len(words) == 3:
            words = shlex.split(words[2])
    except ValueError:
        return None
    found = []
    for is_end, group in itertools.groupby(words, lambda word: word == "&&"):
        line = list(itertools.dropwhile(ASSIGNMENT.match, group))
        if is_end or line[:1] == ["export"]:
            continue
        if line[:2] != ["rock", "model-service"]:
            return None
        found.append(line[2:])
    return found or None


@dataclasses.dataclass
class _Process:
    """A command in the background. path: of the file in which the client expects its output."""

    path: str
    work: asyncio.Task[str]


class _Counted:
    """A tunnel whose bytes count as the tenant's, as those of a relay to a client do."""

    def __init__(self, tunnel: Carried, ticket: Ticket):
        self._tunnel, self._ticket = tunnel, ticket

    async def receive(self) -> tuple[str, bytes]:
        kind, data = await self._tunnel.receive()
        await self._ticket.receive(len(data))
        return kind, data

    async def write(self, data: bytes) -> None:
        await self._ticket.send(len(data))
        await self._tunnel.write(data)


class RockModel:
    """The model service of one sandbox, and the commands about it."""

    def __init__(self, by: Caller, id: str, idle_seconds: float):
        self._pool, self._id, self._idle_seconds = by.pool, by.pools_id(id), idle_seconds
        self._ticket = Ticket(by.account)  # the call that starts it ends before
        self._idle: asyncio.TimerHandle | None = None
        self._calls: ModelCalls | None = None
        self._tasks: set[asyncio.Task] = set()  # of the model service
        self._numbers = itertools.count(FIRST_PID)
        self._processes: dict[int, _Process] = {}
        self._files: dict[str, str] = {}

    async def run(self, command: str) -> str | None:
        """The output of a command of the client; None if it is one for bash. Errors: SandboxError,
        ValueError."""
        self._used()
        if asks := ASKS.fullmatch(command):
            return await self._wait(int(asks[1]))
        if reads := READS.fullmatch(command):
            return self._output(reads[1])
        if NAME not in command or len(command) > MAX_COMMAND:
            return None
        nohup = NOHUP.fullmatch(command)
        lines = await asyncio.to_thread(parse, nohup[1] if nohup else command)
        if lines is None:
            return None
        return self._begin(lines, nohup[2]) if nohup else await self._do_all(lines)

    def take_file(self, path: str, content: bytes) -> bool:
        """Keeps an answer that is too long for a command. False for another file."""
        if self._calls is None or not LARGE_ANSWER.fullmatch(path):
            return False
        self._files = {path: content.decode()}
        return True

    def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        for task in (*self._tasks, *(each.work for each in self._processes.values())):
            task.cancel()
        self._processes.clear()

    def _used(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._idle_seconds:
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self.close)

    def _begin(self, lines: Sequence[Sequence[str]], path: str) -> str:
        pid = next(self._numbers)
        work = asyncio.ensure_future(self._do_all(lines))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._processes[pid] = _Process(path, work)
        if len(self._processes) > MAX_PROCESSES:
            oldest = self._processes.pop(next(iter(self._processes)))
            oldest.work.cancel()
        return f"PIDSTART{pid}PIDEND"

    async def _wait(self, pid: int) -> str | None:
        if pid not in self._processes:
            return None
        done, _ = await asyncio.wait([self._processes[pid].work], timeout=PATIENCE_S)
        if done:
            raise SandboxError(f"kill: ({pid}) - No such process")
        return ""

    def _output(self, path: str) -> str | None:
        for pid, process in self._processes.items():
            if process.path == path and process.work.done():
                del self._processes[pid]
                return process.work.result()
        return None

    async def _do_all(self, lines: Sequence[Sequence[str]]) -> str:
        output = ""
        for line in lines:
            output = await self._do(line)
        return output

    async def _do(self, line: Sequence[str]) -> str:
        what, options = _options(line)
        if what == "start":
            if options.get("--type", "local") != "local":
                raise ValueError("--type proxy: let the agent reach a gateway through a relay")
            await self._start(_number({"--port": PORT} | options, "--port"))
        elif what == "stop":
            await self._stop()
        elif what == "watch-agent":
            self._watch(_number(options, "--pid"))
        else:
            answer = options.get("--response")
            if path := options.get("--response-file"):
                answer = self._files.pop(path, None)
            return await self._running().anti_call(_number(options, "--index"), answer)
        return ""

    def _running(self) -> ModelCalls:
        if self._calls is None:
            raise SandboxError("no model service runs: type: rock model-service start")
        return self._calls

    async def _start(self, port: int) -> None:
        if self._calls is not None:
            raise SandboxError("a model service runs already: type: rock model-service stop")
        self._calls = calls = ModelCalls()
        opened = asyncio.get_running_loop().create_future()
        self._spawn(self._relay(port, calls, opened))
        await opened

    async def _stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, port: int, calls: ModelCalls, opened: asyncio.Future[None]) -> None:
        dialer = Dialer(ModelServer(calls, self._watch).serve)
        try:
            async with self._pool.relay(self._id, port) as tunnel:
                opened.set_result(None)
                await carry(_Counted(tunnel, self._ticket), dialer)
        except Exception as error:  # of any kind: the trainer is told
            calls.end(SandboxError(f"the model service has failed: {error}"))
            if not opened.done():
                opened.set_exception(error)
        finally:
            calls.end()
            dialer.close()
            opened.cancel()
            self._files.clear()
            if self._calls is calls:
                self._calls = None

    def _watch(self, pid: object) -> None:
        """Errors: ValueError, SandboxError."""
        if type(pid) is not int or pid <= 0:
            raise ValueError(f"pid {pid!r:.80} must be a whole number from 1")
        if len(self._tasks) > MAX_WATCHED:
            raise ValueError(f"pid {pid}: {MAX_WATCHED} processes are watched already")
        self._spawn(self._end_with(pid, self._running()))

    async def _end_with(self, pid: int, calls: ModelCalls) -> None:
        """Ends the session once the agent's process has ended."""
        argv = ["bash", "-c", WATCH, "bash", str(pid)]
        with contextlib.suppress(SandboxError, Refusal):  # the relay's end tells of it
            async for _ in self._pool.stream(self._id, argv, timeout=None):
                pass
            calls.end()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _number(options: Mapping[str, str | int], name: str) -> int:
    """Errors: ValueError."""
    try:
        return int(options[name])
    except (KeyError, ValueError):
        raise ValueError(f"{name} {options.get(name)!r:.80} must be a whole number") from None


def _options(line: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """Errors: ValueError."""
    what, *rest = line or [""]
    if what not in OPTIONS:
        raise ValueError(f"rock model-service {what!r:.80}: choose one of {', '.join(OPTIONS)}")
    options = dict(zip(rest[::2], rest[1::2], strict=False))
    if len(rest) % 2 or not options.keys() <= OPTIONS[what]:
        takes = ", ".join(f"{name} VALUE" for name in sorted(OPTIONS[what])) or "no options"
        raise ValueError(f"rock model-service {what} takes {takes}: {rest!r:.200}")
    return what, options


class RockModels:
    """The model services of the sandboxes of ROCK's clients, by the pool's id; each ends with its
    sandbox. Errors of all methods: Refusal (404) for a sandbox of another tenant."""

    def __init__(self):
        self._known: dict[str, RockModel] = {}

    async def run(self, by: Caller, id: str, body: RockRunBody, idle_seconds: float) -> str | None:
        """See `RockModel.run`. idle_seconds: without a command, after which a model service ends,
        which would keep its sandbox in use; 0: none."""
        key = by.pools_id(id)
        if key not in self._known and NAME not in body.command:
            return None
        await by.check(id)
        if key not in self._known:
            self._known[key] = RockModel(by, id, idle_seconds)
            if len(self._known) > MAX_KNOWN:
                self._known.pop(next(iter(self._known))).close()
        output = await self._known[key].run(body.command)
        if output is not None and READS.match(body.command) and OWN_SESSION.match(body.session):
            with contextlib.suppress(SandboxError):  # the client never closes it
                await by.call(id, "close_session", name=body.session)
        return output

    async def take_file(self, by: Caller, id: str, path: str, content: bytes) -> bool:
        """See `RockModel.take_file`."""
        model = self._known.get(by.pools_id(id))
        if model is None:
            return False
        await by.check(id)
        return model.take_file(path, content)

    def forget(self, id: str) -> None:
        """Ends the model service of a sandbox that has ended, if it had one."""
        if model := self._known.pop(id, None):
            model.close()
