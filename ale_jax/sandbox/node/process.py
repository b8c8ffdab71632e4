"""The process that owns the sandboxes of a directory: how a service starts, finds and ends it.

The directory may be entered by its user only. It holds the socket, the token without which nobody
is served, what the process was started with, and its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.node.client import NodeClient
from ale_jax.sandbox.node.server import NodeServer
from ale_jax.sandbox.pool.options import ManagedPool, closed_at_exit
from ale_jax.sandbox.service.protocol import Refusal

SOCKET, ABOUT, LOG = "node.sock", "node.json", "node.log"
STARTS, OWNS = "starts.lock", "owns.lock"  # held by who starts the process, and by the process
MAX_PATH = 107  # bytes of a socket's path (unix(7))
END_S = 60.0
BACKLOG = 512


class StateDirectory:
    """The directory of one such process, whether it runs or not."""

    def __init__(self, path: str):
        """Creates the directory. ValueError if others may enter it, or its path is too long."""
        self.path = Path(path).resolve()
        if len(os.fsencode(self.path / SOCKET)) > MAX_PATH:
            raise ValueError(f"state directory {path!r:.140}: its path is too long for a socket")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.path.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ValueError(
                f"state directory {path!r:.140} must be yours alone; type: chmod 700 {path}"
            )

    async def find(self) -> NodeClient | None:
        """A client of the running process, open; None if there is none."""
        try:
            about = json.loads((self.path / ABOUT).read_text())
        except FileNotFoundError:
            return None
        client = NodeClient(self.path / SOCKET, about["token"])
        try:
            return await client.__aenter__()
        except Refusal:  # it has ended, or was killed
            return None

    async def find_or_start(self, asked: Mapping[str, Any]) -> NodeClient:
        """A client of the process, open. If none runs, starts this program's own command line again
        as that process.

        asked: the options that the process must have been started with. Errors: ValueError if it
        has others; SandboxStartError with the reason why it did not start.
        """
        with self._locked(STARTS):
            if (client := await self.find()) is None:
                await asyncio.to_thread(self._start)
                client = await self.find()
            if client is None:
                raise SandboxStartError(f"the process of {self.path} ended; see {LOG} there")
        had = json.loads((self.path / ABOUT).read_text())["asked"]
        for name, value in asked.items():
            if had.get(name) != value:  # a process of an older version knows fewer
                await client.close()
                option = name.replace("_", "-")
                raise ValueError(
                    f"--{option} {value!r}: the sandboxes of {self.path} were started with"
                    f" {had.get(name)!r}; type: ale-sandbox stop-node {self.path}"
                )
        return client

    async def end(self) -> bool:
        """Ends the process and its sandboxes. False if none runs."""
        if (client := await self.find()) is None:
            return False
        async with client:
            await client.end()
        try:
            async with asyncio.timeout(END_S):
                while (self.path / ABOUT).exists():  # its last act is to remove this file
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise SandboxError(f"the process of {self.path} has not ended in {END_S:g} s") from None
        return True

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """For the process itself: waits until an earlier one has ended, and cleans up at the end.
        The kernel releases the lock of a process that is killed."""
        with self._locked(OWNS):
            try:
                yield
            finally:
                (self.path / SOCKET).unlink(missing_ok=True)
                (self.path / ABOUT).unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def serving(
        self, server: NodeServer, token: str, asked: Mapping[str, Any]
    ) -> AsyncIterator[None]:
        """Serves front ends in the block, and can be found by them."""
        socket = self.path / SOCKET
        socket.unlink(missing_ok=True)  # of a process that was killed
        old = os.umask(0o177)
        try:
            listener = await asyncio.start_unix_server(server.serve, socket, backlog=BACKLOG)
        finally:
            os.umask(old)
        about = {"pid": os.getpid(), "token": token, "asked": dict(asked)}
        try:
            _write_private(self.path / ABOUT, json.dumps(about))
            yield
        finally:
            listener.close()
            server.close()

    def _start(self) -> None:
        """Returns when the process serves. Errors: SandboxStartError."""
        ready, theirs = os.pipe()
        line = [sys.executable, *sys.orig_argv[1:], f"--owner-fd={theirs}"]
        with open(ready, "rb") as said, open(self.path / LOG, "ab", opener=_private) as messages:
            with open(theirs, "wb"):
                subprocess.Popen(
                    line,
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    pass_fds=[theirs],
                    start_new_session=True,  # Ctrl-C in the service's terminal must not reach it
                )
            trouble = said.read().decode("utf-8", "replace")
        if trouble:
            raise SandboxStartError(trouble)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with open(self.path / name, "wb", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _write_private(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    with open(new, "w", opener=_private) as file:
        file.write(text)
    new.replace(path)  # readers see all of it or nothing


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


async def own(
    pool: ManagedPool, label: str, state: StateDirectory, asked: Mapping[str, Any], ready: int
) -> None:
    """Holds `pool` for front ends until one of them, or SIGTERM, ends it.

    ready: a descriptor that is closed when it serves; the service that started it waits for that.
    """
    token = secrets.token_urlsafe(32)
    server = NodeServer(pool, token, label)
    async with closed_at_exit(pool), state.serving(server, token, asked):
        os.close(ready)
        await server.ending.wait()
