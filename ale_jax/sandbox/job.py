"""A process in a sandbox, as its starter holds it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from ale_jax.sandbox.api import ProcessResult, SandboxError
from ale_jax.sandbox.link import Stream
from ale_jax.sandbox.output import join
from ale_jax.sandbox.runner import wire

SIGNAL_S = 30.0


class Job:
    """Started by `AsyncSandbox.spawn`. It ends by itself; `kill` takes along what it started."""

    def __init__(
        self, stream: Stream, request: dict[str, Any], ask: Callable[..., Awaitable[dict]]
    ):
        self.name: str = request["job"]
        self._stream, self._ask = stream, ask

    async def write(self, data: bytes) -> None:
        """To its standard input. Waits while the process does not read."""
        await self._stream.send(data, even_if_ended=False)

    def close_stdin(self) -> None:
        self._stream.end()

    async def receive(self) -> tuple[str, bytes] | None:
        """What it wrote next, and where: "stdout" or "stderr". None when it has ended."""
        piece = await self._stream.receive()
        if piece is None:
            return None
        kind, data = piece
        return ("stderr" if kind == wire.ERROR else "stdout"), data

    async def wait(self) -> int:
        """Its exit code, when it has ended; output that was not received is dropped.

        Errors: SandboxError if it could not be started, SandboxLost.
        """
        return (await self._outcome())["exit_code"]

    async def signal(self, number: int) -> None:
        """To its process group. SandboxError if it has ended."""
        await self._ask({"do": "signal", "job": self.name, "signal": number}, SIGNAL_S)

    async def kill(self) -> None:
        """Ends it, and all that it started. SandboxError if it has ended."""
        await self.signal(9)

    async def resize(self, rows: int, columns: int) -> None:
        """Its terminal, if it has one."""
        request = {"do": "resize", "job": self.name, "rows": rows, "columns": columns}
        await self._ask(request, SIGNAL_S)

    async def result(self, started: float) -> ProcessResult:
        """All of it, for a job whose output is kept. started: by the monotonic clock."""
        data = {"stdout": bytearray(), "stderr": bytearray()}
        while (piece := await self.receive()) is not None:
            data[piece[0]] += piece[1]
        outcome = await self._outcome()
        texts = [
            join(bytes(data[name]), head, omitted)
            for name, (head, omitted) in zip(("stdout", "stderr"), outcome["kept"], strict=True)
        ]
        omitted = sum(omitted for _, omitted in outcome["kept"])
        seconds, timed_out = time.monotonic() - started, outcome["timed_out"]
        return ProcessResult(*texts, outcome["exit_code"], timed_out, omitted, seconds)

    async def _outcome(self) -> dict[str, Any]:
        outcome = await self._stream.outcome()
        self._stream.end()
        if "error" in outcome:
            raise SandboxError(f"sandbox cannot start a process: {outcome['error']}")
        return outcome
