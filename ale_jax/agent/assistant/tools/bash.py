"""The tool that runs commands in a shell, which stays between them.

What it runs is hostile: it may print without end, hang, or end the shell itself.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import dataclasses
import os
import re
import secrets
import shlex
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO

from pydantic import Field

from ale_jax.agent.assistant.settings import environment_of_tools
from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool

KEPT_CHARS = 1 << 20  # of an output's beginning, and of its end
READ_BYTES = 1 << 16
PIPE_BYTES = 1 << 20  # that a pipe holds at most, unless root has raised the limit


class BashArguments(Arguments):
    command: str = Field(min_length=1, max_length=1 << 17)


class BashTool(TypedTool[BashArguments]):
    name = "bash"
    description = "Runs a command in a shell that keeps its directory and variables."
    Arguments = BashArguments

    def __init__(self, folder: Path, seconds: float):
        self._shell, self._seconds = Shell(folder, KEPT_CHARS), seconds

    async def use(self, arguments: BashArguments, call_id: str) -> ToolResult:
        if any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in arguments.command):
            raise ToolError("the command holds a character that no shell can take")
        output = await self._shell.run(arguments.command, self._seconds)
        return ToolResult(self._told(output), is_error=output.exit_code != 0)

    async def close(self) -> None:
        await self._shell.close()

    def _told(self, output: ShellOutput) -> str:
        notes = []
        if output.timed_out:
            notes.append(f"[killed after {self._seconds:g} s; the shell was started anew]")
        elif output.shell_ended:
            notes.append(f"[the shell ended with exit code {output.exit_code}; it starts anew]")
        elif output.exit_code:
            notes.append(f"[exit code {output.exit_code}]")
        text = output.text.strip("\n")
        return "\n".join([*([text] if text else []), *notes]) or "[no output]"


@dataclasses.dataclass(frozen=True)
class ShellOutput:
    """What a command left behind. text: standard output and error, in the order of writing.
    exit_code: of the command."""

    text: str
    exit_code: int
    timed_out: bool = False
    shell_ended: bool = False


class Shell:
    """One command at a time. Starts with the first one, and anew when it has ended."""

    def __init__(self, folder: Path, kept_chars: int):
        """kept_chars: what is held of an output is a small multiple of it."""
        self._folder, self._kept_chars = folder, kept_chars
        self._running: _Running | None = None

    async def run(self, command: str, seconds: float) -> ShellOutput:
        """Runs a command. After `seconds`, or when it is cancelled, the command is killed with the
        shell."""
        if self._running is None:
            self._running = await _Running.start(self._folder)
        # It ends the output of this command, and cannot be guessed by it.
        mark = secrets.token_hex(16)
        # A command that reads gets nothing, instead of the shell's own script.
        script = f"eval {shlex.quote(command)} </dev/null\nprintf '\\n%s %d\\n' {mark} $?\n"
        output = _Output(mark, self._kept_chars)
        try:
            async with asyncio.timeout(seconds):
                await self._running.exchange(script.encode(), output)
        except TimeoutError:
            await self.close()
            return ShellOutput(output.text(), 124, timed_out=True)
        except asyncio.CancelledError:
            await self.close()
            raise
        if output.exit_code is not None:
            return ShellOutput(output.text(), output.exit_code)
        code = await self.close()
        return ShellOutput(output.text(), code, shell_ended=True)

    async def close(self) -> int:
        """Kills the shell and what it started; returns the shell's exit code."""
        running, self._running = self._running, None
        if running is None:
            return 0
        # A shell that ended by itself is not reaped yet, so its group is not another's by now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        code = await asyncio.to_thread(running.process.wait)
        running.close()
        return code


@dataclasses.dataclass
class _Running:
    """A shell's process and its output. Not asyncio's own process, whose `wait` does not return
    while a process that the shell left behind holds the pipe."""

    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    output: asyncio.StreamReader
    transport: asyncio.ReadTransport

    @staticmethod
    async def start(folder: Path) -> _Running:
        process = subprocess.Popen(
            ("bash", "--noprofile", "--norc"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment_of_tools() | {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"},
            start_new_session=True,  # so that the whole group can be killed
            bufsize=0,
        )
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None, "they are pipes"
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), stdout
        )
        running = _Running(process, stdin, stdout, reader, transport)
        # Not a thread of the executor's, of which the shells of sub-agents could hold all.
        threading.Thread(target=running._watch, args=(loop,), name="shell", daemon=True).start()
        return running

    async def exchange(self, script: bytes, output: _Output) -> None:
        """Sends a command and reads its output until the command's end, or the shell's."""
        # Together, for the shell may print more than a pipe holds before it has read the script.
        writing = asyncio.create_task(asyncio.to_thread(self._write, script))
        while output.exit_code is None:
            chunk = await self.output.read(READ_BYTES)
            if not chunk:
                return
            output.add(chunk)
        await writing

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        # ChildProcessError: `Shell.close` was first. RuntimeError: the loop is closed.
        with contextlib.suppress(ChildProcessError, RuntimeError):
            # Does not reap it: `Shell.close` relies on that. Not a pidfd, as older gVisors lack it.
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            loop.call_soon_threadsafe(self._end_output)

    def _end_output(self) -> None:
        """After the shell's end. What it wrote is in the pipe, but the pipe has no end while a
        process that the shell left behind holds it."""
        if self.transport.is_closing():
            return
        with contextlib.suppress(BlockingIOError):
            # One read, for what was left behind may write without end.
            self.output.feed_data(os.read(self.stdout.fileno(), PIPE_BYTES))
        self.transport.close()

    def close(self) -> None:
        self.transport.close()
        self.stdin.close()

    def _write(self, script: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # who reads the output finds its end
            while script:
                script = script[self.stdin.write(script) :]


class _Output:
    """The head and the tail of what was written before the mark. However much that is, only a
    small multiple of `kept` characters is held."""

    def __init__(self, mark: str, kept: int):
        self._end = re.compile(rf"\n{mark} (\d+)\n")
        self._kept, self._mark_chars = kept, len(mark) + 8
        self._head, self._tail, self._left_out = "", "", 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.exit_code: int | None = None

    def add(self, chunk: bytes) -> None:
        self._tail += self._decode(chunk)
        # The mark is at the very end, for after it the shell waits for the next command; only what
        # was left in the background may write behind it.
        if found := self._end.search(self._tail, max(0, len(self._tail) - 2 * READ_BYTES)):
            self.exit_code = int(found[1])
            self._tail = self._tail[: found.start()]
        room = self._kept - len(self._head)
        if room > 0:
            # The mark may be divided between two chunks, so its length stays in the tail.
            taken = max(0, min(room, len(self._tail) - self._mark_chars))
            self._head, self._tail = self._head + self._tail[:taken], self._tail[taken:]
        surplus = len(self._tail) - self._kept - self._mark_chars
        if surplus > 0:
            self._tail, self._left_out = self._tail[surplus:], self._left_out + surplus

    def text(self) -> str:
        if not self._left_out:
            return self._head + self._tail
        return f"{self._head}\n[... {self._left_out} characters left out ...]\n{self._tail}"
