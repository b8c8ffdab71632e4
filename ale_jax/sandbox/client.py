"""The host's side of a sandbox: calls of the `Sandbox` protocol become requests to its runner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from ale_jax.sandbox.api import ExecResult, SandboxError, SandboxLost, SandboxSpec
from ale_jax.sandbox.bootstrap import bootstrap
from ale_jax.sandbox.channel import Channel

START_S = 30.0
FILES_S = 30.0
# Beyond a command's own time: what the runner may need to kill every process of the agent.
RUN_GRACE_S = 15.0
EXIT_MISUSE = 2  # what bash itself answers to text that it cannot parse


class Machine(Protocol):
    """What a runtime starts: the isolated processes with the runner among them."""

    channel: Channel

    def alive(self) -> bool: ...

    def destroy(self) -> None:
        """Ends it and frees what it held, or leaves it to the reaper. May be called again."""

    def last_words(self) -> str:
        """What its standard error said, once it is destroyed."""


class RunnerSandbox:
    """A `Sandbox` on any machine. One thread at a time; `close` may come from another."""

    def __init__(self, machine: Machine, spec: SandboxSpec):
        self._machine = machine
        self._spec = spec
        # Sparse files are archived as such; of small ones, headers and padding take 1 KiB each.
        self._max_snapshot = 4 * spec.files_mb << 20

    def boot(self, config: dict) -> None:
        """Sends the runner in, and returns when it serves. config: see `bootstrap`."""
        try:
            self._machine.channel.send(bootstrap(config), START_S)
            self._machine.channel.receive(0, START_S)
        except (OSError, SandboxLost) as error:
            raise self._lost(error) from error

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        started = time.monotonic()
        limit = self._spec.command_seconds if timeout is None else timeout
        if limit <= 0:
            raise ValueError(f"timeout {limit} must be more than 0 seconds")
        if "\0" in command:
            return ExecResult("bash: the command contains a NUL byte\n", EXIT_MISUSE, False, 0, 0.0)
        header = {"do": "run", "timeout": limit, "output_bytes": self._spec.output_bytes}
        reply, data = self._request(
            header,
            command.encode("utf-8", "replace"),
            seconds=limit + RUN_GRACE_S,
            max_bytes=self._spec.output_bytes,
        )
        if "error" in reply:
            raise SandboxError(f"sandbox cannot run a command: {reply['error']}")
        try:
            return ExecResult(
                output=_join(data, int(reply["head"]), int(reply["omitted"])),
                exit_code=int(reply["exit_code"]),
                timed_out=bool(reply["timed_out"]),
                omitted_bytes=int(reply["omitted"]),
                seconds=time.monotonic() - started,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._lost(SandboxLost(f"malformed reply {reply!r:.200}")) from error

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        if not path or "\0" in path or ".." in path.split("/"):
            raise ValueError(f"path {path!r} must name a file, without '..'")
        header = {"do": "read", "path": path, "max_bytes": max_bytes}
        reply, data = self._request(header, seconds=FILES_S, max_bytes=max_bytes)
        if "error" in reply:
            raise FileNotFoundError(f"{path!r} cannot be read as a regular file: {reply['error']}")
        return data

    def write(self, files: Mapping[str, bytes]) -> None:
        for path in files:
            parts = path.split("/")
            if "\0" in path or any(part in ("", ".", "..") for part in parts):
                raise ValueError(f"path {path!r} must be relative to /work, without '.' and '..'")
        header = {"do": "write", "files": [(path, len(data)) for path, data in files.items()]}
        reply, _ = self._request(header, b"".join(files.values()), seconds=FILES_S, max_bytes=0)
        if "error" in reply:
            raise OSError(reply["errno"], f"cannot write into the sandbox: {reply['error']}")

    def snapshot(self) -> bytes:
        header = {"do": "snapshot", "max_bytes": self._max_snapshot}
        return self._succeed(header, max_bytes=self._max_snapshot + (1 << 16))

    def restore(self, snapshot: bytes) -> None:
        self._succeed({"do": "restore"}, snapshot)

    def reset(self) -> None:
        self._succeed({"do": "reset"})

    def kill_processes(self) -> None:
        self._succeed({"do": "kill"})

    def alive(self) -> bool:
        return self._machine.alive()

    def close(self) -> None:
        self._machine.destroy()

    def __enter__(self) -> RunnerSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _succeed(self, header: dict, data: bytes = b"", max_bytes: int = 0) -> bytes:
        reply, answer = self._request(header, data, seconds=FILES_S, max_bytes=max_bytes)
        if "error" in reply:
            raise SandboxError(f"sandbox cannot {header['do']}: {reply['error']}")
        return answer

    def _request(
        self, header: dict, data: bytes = b"", *, seconds: float, max_bytes: int
    ) -> tuple[dict, bytes]:
        try:
            return self._machine.channel.request(header, data, seconds=seconds, max_bytes=max_bytes)
        except SandboxLost as error:
            raise self._lost(error) from error

    def _lost(self, cause: Exception) -> SandboxLost:
        """A machine that broke the protocol is not used again, even if it still breathes."""
        self._machine.destroy()
        words = self._machine.last_words().strip()
        return SandboxLost(f"{cause}{': ' + words if words else ''}")


def _join(data: bytes, head: int, omitted: int) -> str:
    if not omitted:
        return data.decode("utf-8", "replace")
    first, last = data[:head], data[head:]
    gap = f"\n[... {omitted} bytes omitted ...]\n"
    return first.decode("utf-8", "replace") + gap + last.decode("utf-8", "replace")
