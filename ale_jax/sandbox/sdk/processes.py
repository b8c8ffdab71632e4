"""The calls of a sandbox of the service that start single processes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import httpx

from ale_jax.sandbox.api import JobStatus, ProcessResult
from ale_jax.sandbox.sdk.calls import Call
from ale_jax.sandbox.sdk.streams import (
    AsyncOutput,
    AsyncPipes,
    AsyncTerminal,
    Interaction,
    WebSockets,
)
from ale_jax.sandbox.service import protocol
from ale_jax.sandbox.service.protocol import Endpoint
from ale_jax.sandbox.spec import SandboxSpec

T = TypeVar("T")


class Service(Protocol):
    """What is needed of an `AsyncSandboxClient`."""

    http: httpx.AsyncClient
    sockets: WebSockets

    async def do(self, call: Call[T]) -> T: ...


def process_body(
    argv: Sequence[str] | str,
    timeout: float | None,
    stdin: bytes,
    cwd: str,
    env: Mapping[str, str] | None,
    user: str,
) -> dict[str, Any]:
    """Describes a process in the form that the service expects."""
    words = argv if isinstance(argv, str) else list(argv)
    values = {"argv": words, "timeout": timeout, "cwd": cwd, "env": dict(env or {}), "user": user}
    return values | {"stdin": base64.b64encode(stdin).decode()}


class Processes:
    """id, spec: of the sandbox."""

    def __init__(self, client: Service, id: str, spec: SandboxSpec):
        self.id, self.spec = id, spec
        self._client = client

    async def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> ProcessResult:
        """Runs a process outside every session; a string is a command line for bash. user: as for
        `open_session`."""
        body = process_body(argv, timeout, stdin, cwd, env, user)
        return await self._do(protocol.EXEC, body=body, seconds=self._limit(timeout))

    def spawn(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> AsyncOutput:
        """Starts a process and streams its output. timeout: seconds; None: no limit."""
        body = process_body(argv, timeout, stdin, cwd, env, user)
        http = self._client.http
        return AsyncOutput(http, Call(protocol.SPAWN, self.id, body=body).request(http), self.id)

    def terminal(
        self, command: str = "bash -i", rows: int = 24, columns: int = 80, user: str = ""
    ) -> AsyncTerminal:
        """Runs a bash command on a terminal."""
        line = Interaction(self.id, command, rows, columns, user)
        return AsyncTerminal(self._client.sockets, line)

    def pipes(self, command: str, user: str = "") -> AsyncPipes:
        """Runs a bash command whose input is sent while its output arrives."""
        return AsyncPipes(self._client.sockets, Interaction(self.id, command, 0, 0, user))

    async def start_job(
        self,
        name: str,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> None:
        """Starts a process that goes on without you. timeout: seconds; None: no limit.

        Errors: SandboxError if there is a job with that name, or are too many.
        """
        body = process_body(argv, timeout, stdin, cwd, env, user) | {"name": name}
        await self._do(protocol.START_JOB, body=body)

    async def jobs(self) -> list[str]:
        """Returns the names of all jobs, also of those whose process has ended."""
        return await self._do(protocol.JOBS)

    async def job(self, name: str, seconds: float = 0.0) -> JobStatus:
        """Returns what a job has written and whether it has ended, after its end or `seconds`.
        SandboxError if there is no such job."""
        return await self._do(protocol.JOB, job=name, params={"seconds": seconds}, seconds=seconds)

    async def end_job(self, name: str) -> None:
        """Kills a job, and forgets it. SandboxError if there is no such job."""
        await self._do(protocol.END_JOB, job=name)

    async def _do(self, endpoint: Endpoint[T], **parts: Any) -> T:
        """parts: fields of the `Call`."""
        return await self._client.do(Call(endpoint, self.id, **parts))

    def _limit(self, timeout: float | None) -> float:
        return self.spec.command_seconds if timeout is None else timeout
