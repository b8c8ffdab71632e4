"""The host's side of a sandbox, for one event loop: sends the runner's source to a bare python3 and
turns method calls into requests to that runner."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ale_jax.sandbox.api import (
    ExecResult,
    Expected,
    SandboxLost,
    SandboxStats,
    check_pattern,
)
from ale_jax.sandbox.background import BackgroundCalls
from ale_jax.sandbox.exchange import FILES_S, RUN_GRACE_S, FileCalls, Machine, OutputSink, join
from ale_jax.sandbox.ports import PortCalls
from ale_jax.sandbox.process_calls import check_words
from ale_jax.sandbox.runner import wire
from ale_jax.sandbox.runner.wire import MAIN
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.vitals import Vitals

# Short, because an agent sees this line whenever it lists processes.
PROGRAM = "exec(open(0, 'rb', 0, closefd=False).readline())"
COMMAND = ["python3", "-I", "-S", "-c", PROGRAM]
# In the order in which they import each other.
MODULES = (
    *("wire", "loop", "link", "kernel", "files", "rights", "world", "state", "usage"),
    *("processes", "guards", "terminal", "session", "jobs", "main"),
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
MAX_SIZE = 1000  # rows or columns of a terminal
EXIT_MISUSE = 2  # bash's own exit code for text that it cannot parse


class AsyncSandbox(FileCalls, PortCalls, BackgroundCalls):
    """`api.Sandbox` with coroutines and further methods. Calls may run concurrently; each session
    runs one command at a time.

    contents: tar archives with the initial contents of writable directories, by path.
    """

    def __init__(self, machine: Machine, spec: SandboxSpec, contents: Mapping[str, bytes]):
        super().__init__(machine, max_snapshot=spec.archive_bytes)
        self.spec, self._contents = spec, contents

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
        check_words((), env)
        request = {"do": "open", "session": name, "env": dict(env or {}), "cwd": cwd}
        await self._ask(request | {"user": self._account(user)}, FILES_S)

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

    async def begin(
        self, command: str, session: str = MAIN, rows: int = 0, columns: int = 0
    ) -> None:
        """As `api.Sandbox.begin`. rows, columns: size of the terminal; 0: it tells none, and
        programs choose, mostly 24 x 80."""
        if "\0" in command:
            raise ValueError("the command contains a NUL byte")
        if not (0 <= rows <= MAX_SIZE and 0 <= columns <= MAX_SIZE):
            raise ValueError(f"rows {rows} and columns {columns} must be from 0 to {MAX_SIZE}")
        body = [command.encode("utf-8", "replace")]
        size = {"rows": rows, "columns": columns}
        await self._ask({"do": "begin", "session": session, **size}, FILES_S, body)

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

    async def reset(self) -> None:
        await self._renewed({"do": "reset"})
        self._forget_jobs()
        await self._fill()

    async def restore(self, snapshot: bytes) -> None:
        await super().restore(snapshot)
        self._forget_jobs()

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

    async def alive(self) -> bool:
        return await self._machine.alive()

    async def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        for door in self._doors.values():
            door.close()
        await self._machine.destroy()

    async def _fill(self) -> None:
        for path, archive in self._contents.items():
            await self.unpack(archive, path)
