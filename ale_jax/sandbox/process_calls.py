"""The calls of a sandbox that start single processes, and what they may be started with."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.sandbox.api import ProcessResult
from ale_jax.sandbox.exchange import RUN_GRACE_S, Exchange, SandboxProcess, result_of
from ale_jax.sandbox.spec import SandboxSpec

LONGEST = (128 << 10) - 1  # bytes of one argument or variable, for execve(2)

_numbers = itertools.count()


def check_words(argv: Sequence[str], env: Mapping[str, str] | None) -> None:
    """Errors: ValueError, which names what is longer than any program can be given."""
    words = [(f"argument {number}", word) for number, word in enumerate(argv)]
    words += [(f"variable {name!r:.80}", f"{name}={value}") for name, value in (env or {}).items()]
    for told, word in words:
        if (size := len(_encoded(word))) > LONGEST:
            limit = f"of which the kernel passes at most {LONGEST}"
            raise ValueError(f"{told} has {size} bytes, {limit}: use a file or standard input")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def line_of(command: str) -> dict[str, Any]:
    """The part of a request that has bash execute a command line, of any length. ValueError for a
    long one with a NUL."""
    if len(_encoded(command)) > LONGEST:
        if "\0" in command:
            raise ValueError("the command contains a NUL byte")
        return {"argv": [], "script": command}
    return {"argv": ["bash", "-c", command], "script": None}


class ProcessCalls(Exchange):
    """Processes outside of all sessions. spec: of their sandbox."""

    spec: SandboxSpec

    async def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> ProcessResult:
        """Runs one process outside of all sessions. A string is run by bash as a command line.

        user: as for `open_session`.
        """
        started, limit, keep = time.monotonic(), self._limit(timeout), self.spec.output_bytes
        job = self.spawn(argv, cwd=cwd, env=env, timeout=limit, user=user, keep=keep)
        async with self._bounded("exec", limit + RUN_GRACE_S):
            answer = await job.communicate(stdin, keep)
        return await self._made(lambda: result_of(*answer, time.monotonic() - started))

    def spawn(
        self,
        argv: Sequence[str] | str,
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str = "",
        keep: int | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> SandboxProcess:
        """Starts one process and returns it as a `SandboxProcess`, which streams its output.

        timeout: seconds, None for no limit.
        keep: only send head and tail, so many bytes of each output, when the process has ended.
        terminal: (rows, columns) of a terminal to run it in, instead of pipes.

        Errors: ValueError for an empty list, for an argument that no program can be given, and for
        another user in a sandbox without; SandboxLost.
        """
        request = self._process(argv, cwd, env, user) | {
            "do": "exec",
            "job": f"job-{next(_numbers)}",
        }
        request |= {"timeout": timeout, "terminal": terminal}
        request["output_bytes"] = keep
        stream = self._machine.link.open(request, body=True)
        return SandboxProcess(stream, request, self._ask, self._made)

    def _process(
        self, argv: Sequence[str] | str, cwd: str, env: Mapping[str, str] | None, user: str
    ) -> dict[str, Any]:
        """The part of a request that says what is started. Errors: ValueError."""
        if isinstance(argv, str):
            line = line_of(argv)
        elif not argv:
            raise ValueError("argv must have at least one word, the program")
        else:
            line = {"argv": list(argv), "script": None}
        check_words(line["argv"], env)
        return line | {"cwd": cwd, "env": dict(env or {}), "user": self._account(user)}

    def _account(self, user: str) -> str:
        """The user's name for the runner; empty: the agent's own. ValueError if there is no other
        one."""
        account = "" if user == self.spec.user else user
        if account and self.spec.user != "root":
            raise ValueError(f"user {user!r:.80}: only a sandbox with user root has other users")
        return account

    def _limit(self, timeout: float | None) -> float:
        limit = self.spec.command_seconds if timeout is None else timeout
        if limit <= 0:
            raise ValueError(f"timeout {limit} must be more than 0 seconds")
        return limit
