"""The host's side of a sandbox, for one event loop: sends the runner's source to a bare python3 and
turns method calls into requests to that runner."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from ale_jax.sandbox.api import (
    ExecResult,
    Expected,
    ProcessResult,
    SandboxError,
    SandboxLost,
    SandboxStats,
    check_pattern,
)
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.egress.proxy import EgressProxy
from ale_jax.sandbox.exchange import (
    FILES_S,
    FileCalls,
    Machine,
    OutputSink,
    SandboxProcess,
    join,
    result_of,
)
from ale_jax.sandbox.link import Stream
from ale_jax.sandbox.relay import Door, Serve, Tunnel, check_port, relay_to
from ale_jax.sandbox.runner import wire
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.spec import NO_NETWORK, SandboxSpec
from ale_jax.sandbox.vitals import Vitals

# Short, because an agent sees this line whenever it lists processes.
PROGRAM = "exec(open(0, 'rb', 0, closefd=False).readline())"
COMMAND = ["python3", "-I", "-S", "-c", PROGRAM]
# In the order in which they import each other.
MODULES = (
    *("wire", "loop", "link", "kernel", "files", "rights", "world", "state", "usage"),
    *("processes", "terminal", "session", "jobs", "main"),
)

# Builds the `runner` package from a JSON frame. `bootstrap` sends it as one line, and PROGRAM reads
# exactly that line, so that the frame is still unread when it runs.
LOADER = """
import json, os, struct, sys, types

def take(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or os._exit(0)
    return data

(size,) = struct.unpack(">I", take(4))
cargo = json.loads(take(size))
package = sys.modules["runner"] = types.ModuleType("runner")
package.__path__ = []
for name, source in cargo["modules"]:
    module = types.ModuleType("runner." + name)
    module.__package__ = "runner"
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(source, module.__name__, "exec"), module.__dict__)
package.main.main(cargo["config"])
"""


def bootstrap(config: dict) -> bytes:
    """The first bytes that a process started with COMMAND must read. config: see `runner.main`."""
    folder = Path(__file__).with_name("runner")
    modules = [(name, (folder / f"{name}.py").read_text()) for name in MODULES]
    cargo = json.dumps({"modules": modules, "config": config}).encode()
    return f"exec({LOADER!r})\n".encode() + struct.pack(">I", len(cargo)) + cargo


START_S = 30.0
# On top of a command's timeout: the time that the runner may need to kill all agent processes.
RUN_GRACE_S = 15.0
EXIT_MISUSE = 2  # bash's own exit code for text that it cannot parse


class AsyncSandbox(FileCalls):
    """`api.Sandbox` with coroutines and further methods. Calls may run concurrently; each session
    runs one command at a time.

    contents: tar archives with the initial contents of writable directories, by path.
    """

    def __init__(self, machine: Machine, spec: SandboxSpec, contents: Mapping[str, bytes]):
        super().__init__(machine, max_snapshot=spec.archive_bytes)
        self.spec, self._contents = spec, contents
        self._jobs = itertools.count()
        self._doors: dict[int, Door] = {}
        self._proxy: EgressProxy | None = None

    @property
    def machine(self) -> Machine:
        """What it runs on. A reset may replace it, and what the old one was asked is then lost."""
        return self._machine

    async def boot(self, config: dict[str, Any]) -> None:
        """Sends the runner, and returns once it serves requests. config: see `bootstrap`; its
        `pids` are those of the spec."""
        link = self._machine.link
        link.accept = self._accept
        link.post(bootstrap(config | {"pids": self.spec.pids}))
        try:
            greeting = await asyncio.wait_for(link.greeting(), START_S)
            if greeting.get("protocol") != wire.PROTOCOL:
                raise SandboxLost(f"the runner speaks a different protocol: {greeting!r:.80}")
            await self.open_session(MAIN)
            await self._fill()
        except TimeoutError:
            raise await self._lost(f"the runner did not start within {START_S:g} s") from None
        except SandboxLost as error:
            raise await self._lost(str(error)) from error

    async def run(
        self,
        command: str,
        timeout: float | None = None,
        session: str = MAIN,
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """As `api.Sandbox.run`. on_output: called with the head of the output as it is written."""
        started = time.monotonic()
        limit = self._limit(timeout)
        if "\0" in command:
            return ExecResult("bash: the command contains a NUL byte\n", EXIT_MISUSE, False, 0, 0.0)
        request = {"do": "run", "session": session, "timeout": limit, "live": on_output is not None}
        request["output_bytes"] = self.spec.output_bytes
        sink = OutputSink(self.spec.output_bytes, on_output)
        body = [command.encode("utf-8", "replace")]
        reply = await self._ask(request, limit + RUN_GRACE_S, body, sink)
        return await self._made(
            lambda: ExecResult(
                output=join(sink.data, int(reply["head"]), int(reply["omitted"])),
                exit_code=int(reply["exit_code"]),
                timed_out=bool(reply["timed_out"]),
                omitted_bytes=int(reply["omitted"]),
                seconds=time.monotonic() - started,
                session_ended=bool(reply["session_ended"]),
            )
        )

    async def open_session(
        self,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: str = "/work",
        user: str = "",
    ) -> None:
        """Opens another bash session.

        user: name in /etc/passwd of the user that it runs as; empty for the agent's own user. Only
            a sandbox whose spec has user "root" can open sessions for other users.

        Errors: SandboxError if a session with that name is open, there is no such user, or no more
        processes may live; ValueError if the sandbox may not run sessions as that user.
        """
        account = "" if user == self.spec.user else user
        if account and self.spec.user != "root":
            raise ValueError(f"user {user!r:.80}: only a sandbox with user root has other users")
        request = {"do": "open", "session": name, "env": dict(env or {}), "cwd": cwd}
        await self._ask(request | {"user": account}, FILES_S)

    async def close_session(self, name: str) -> None:
        """Closes a session and kills its processes. SandboxError if no session has that name."""
        await self._ask({"do": "close", "session": name}, FILES_S)

    async def interrupt(self, session: str = MAIN, seconds: float = 2.0) -> bool:
        """Sends Ctrl-C (SIGINT) to the session's command, and kills it if it outlives `seconds`.

        Returns False if no command was running.
        """
        request = {"do": "interrupt", "session": session, "seconds": seconds}
        reply = await self._ask(request, seconds + RUN_GRACE_S)
        return await self._made(lambda: bool(reply["interrupted"]))

    async def begin(self, command: str, session: str = MAIN) -> None:
        """As `api.Sandbox.begin`."""
        if "\0" in command:
            raise ValueError("the command contains a NUL byte")
        body = [command.encode("utf-8", "replace")]
        await self._ask({"do": "begin", "session": session}, FILES_S, body)

    async def send(self, text: str, session: str = MAIN) -> None:
        """As `api.Sandbox.send`."""
        body = [text.encode("utf-8", "replace")]
        await self._ask({"do": "send", "session": session}, FILES_S, body)

    async def expect(
        self, pattern: str | None = None, timeout: float | None = None, session: str = MAIN
    ) -> Expected:
        """As `api.Sandbox.expect`."""
        limit, size = self._limit(timeout), self.spec.output_bytes
        request = {"do": "expect", "session": session, "pattern": pattern, "timeout": limit}
        if pattern is not None:
            check_pattern(pattern)
        sink = OutputSink(size)
        reply = await self._ask(request | {"output_bytes": size}, limit + RUN_GRACE_S, (), sink)
        code = reply.get("exit_code")
        return await self._made(
            lambda: Expected(
                output=join(sink.data, int(reply["head"]), int(reply["omitted"])),
                matched=bool(reply["matched"]),
                exit_code=None if code is None else int(code),
                omitted_bytes=int(reply["omitted"]),
            )
        )

    async def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Runs one process outside of all sessions. A string is run by bash as a command line."""
        started, limit = time.monotonic(), self._limit(timeout)
        job = self.spawn(argv, cwd=cwd, env=env, timeout=limit, keep=True)
        async with self._bounded("exec", limit + RUN_GRACE_S):
            answer = await job.communicate(stdin, self.spec.output_bytes)
        return await self._made(lambda: result_of(*answer, time.monotonic() - started))

    def spawn(
        self,
        argv: Sequence[str] | str,
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        keep: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> SandboxProcess:
        """Starts one process and returns it as a `SandboxProcess`, which streams its output.

        timeout: seconds, None for no limit.
        keep: only send head and tail of the output, when the process has ended.
        terminal: (rows, columns) of a terminal to run it in, instead of pipes.

        Errors: ValueError for an empty list; SandboxLost.
        """
        words = ["bash", "-c", argv] if isinstance(argv, str) else list(argv)
        if not words:
            raise ValueError("argv must have at least one word, the program")
        request: dict[str, Any] = {"do": "exec", "job": f"job-{next(self._jobs)}", "argv": words}
        request |= {"cwd": cwd, "env": dict(env or {}), "timeout": timeout, "terminal": terminal}
        request["output_bytes"] = self.spec.output_bytes if keep else None
        stream = self._machine.link.open(request, body=True)
        return SandboxProcess(stream, request, self._ask, self._made)

    async def reset(self) -> None:
        await self._renewed({"do": "reset"})
        await self._fill()

    async def kill_processes(self) -> None:
        await self._ask({"do": "kill"}, FILES_S)

    def ping(self) -> asyncio.Future[None]:
        """See `Link.ping`."""
        return self._machine.link.ping()

    def vitals(self) -> Vitals | None:
        """See `Machine.vitals`."""
        return self._machine.vitals()

    async def stats(self) -> SandboxStats:
        request = {"do": "stats", "directories": list(self.spec.parts)}
        reply = await self._ask(request, FILES_S)
        return await self._made(lambda: SandboxStats(**(reply | self._machine.usage())))

    async def listen(self, port: int, serve: Serve) -> None:
        """Calls `serve` for each connection to `port` of the sandbox's loopback, from now on, also
        after resets.

        Errors: ValueError if there is no such port; SandboxError if it is in use.
        """
        await self._open(port, Door(serve))

    @contextlib.asynccontextmanager
    async def listening(self, port: int, serve: Serve) -> AsyncIterator[None]:
        """As `listen`, for the duration of the block, which cuts open connections at its end."""
        await self.listen(port, serve)
        try:
            yield
        finally:
            await self._shut(port)

    def relay(self, port: int, host: str, target: int) -> AbstractAsyncContextManager[None]:
        """Lets programs inside reach `target` of `host` at `port` of their loopback, whatever the
        network policy, for the duration of the block. Errors: as of `listen`.
        """
        return self.listening(port, relay_to(host, target))

    @contextlib.asynccontextmanager
    async def tunnel(self, port: int) -> AsyncIterator[Tunnel]:
        """As `relay`, but the far end of the tunnel dials."""
        tunnel = Tunnel()
        watching = asyncio.get_running_loop().create_task(self._watch(tunnel))
        try:
            async with self.listening(port, tunnel.serve):
                yield tunnel
        finally:
            watching.cancel()
            tunnel.close()

    async def connect(self, port: int) -> Stream:
        """Connects to the service that listens on `port` inside the sandbox.

        If nothing listens on the port, the stream ends immediately with an "error" in its outcome.

        Errors: ValueError if there is no such port; SandboxLost.
        """
        check_port(port)
        return self._machine.link.open({"do": "connect", "port": port}, body=True)

    async def open_network(self, proxy: EgressProxy, port: int, serve: Serve) -> None:
        """Makes `proxy` reachable on `port` inside the sandbox, from now on."""
        self._proxy = proxy
        await self.listen(port, serve)

    @property
    def network(self) -> EgressPolicy:
        """The network policy that currently applies."""
        return self._proxy.policy if self._proxy else NO_NETWORK

    def set_network(self, policy: EgressPolicy) -> None:
        """Replaces the network policy, and cuts connections that the new one does not permit.

        Errors: ValueError for a sandbox that was started without a network.
        """
        if self._proxy is None:
            raise ValueError(
                f"network {policy.mode!r}: the sandbox has no network; start it with spec.network"
            )
        self._proxy.set_policy(policy)

    async def alive(self) -> bool:
        return await self._machine.alive()

    async def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        for door in self._doors.values():
            door.close()
        await self._machine.destroy()

    async def _open(self, port: int, door: Door) -> None:
        check_port(port)
        if port in self._doors:
            raise SandboxError(f"port {port} is in use: it is relayed already")
        self._doors[port] = door  # before the first connection can come
        try:
            await self._ask({"do": "listen", "port": port}, FILES_S)
        except BaseException:  # cancelled: the runner may listen meanwhile
            await self._shut(port)
            raise

    async def _shut(self, port: int) -> None:
        with contextlib.suppress(SandboxError):  # the next call meets it again, if it is lost
            await self._ask({"do": "unlisten", "port": port}, FILES_S)
        self._doors.pop(port).close()  # after the answer: no connection comes any more

    async def _watch(self, tunnel: Tunnel) -> None:
        """Ends the tunnel when the sandbox is lost. A reset may replace the machine before."""
        while True:
            machine = self._machine
            try:
                await machine.link.until_lost()
            except SandboxLost as error:
                if machine is self._machine:
                    tunnel.fail(error)
                    return

    async def _fill(self) -> None:
        for path, archive in self._contents.items():
            await self.unpack(archive, path)

    def _limit(self, timeout: float | None) -> float:
        limit = self.spec.command_seconds if timeout is None else timeout
        if limit <= 0:
            raise ValueError(f"timeout {limit} must be more than 0 seconds")
        return limit

    def _accept(self, stream: Stream, request: dict[str, Any]) -> None:
        door = self._doors.get(request.get("port", 0))
        if door is None:
            raise ValueError(f"no handler for {request!r:.80}")
        door.enter(stream)
