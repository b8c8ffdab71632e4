"""A running bwrap, with what belongs to it on the host."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ale_jax.sandbox import cgroups
from ale_jax.sandbox.disk.references import Reference
from ale_jax.sandbox.disk.roots import HeldRoot
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.runner.usage import Usage, read_usage

LEAVE_S, EXIT_S = 0.5, 5.0
LAST_WORDS_BYTES = 2000

log = logging.getLogger(__name__)


class Spawned(NamedTuple):
    """A new bwrap. group: the cgroup for its agent. gates: the descriptors through which the
    agent's processes enter that. ours: the socket to its runner. root: its root, if on disk."""

    process: subprocess.Popen
    group: cgroups.Cgroup | None
    gates: list[int]
    ours: socket.socket
    root: HeldRoot | None = None


class BubblewrapMachine:
    """A running bwrap with its cgroups and the socket to its runner."""

    def __init__(self, spawned: Spawned, link: Link, spawner: ThreadPoolExecutor):
        self.link = link
        self._spawner = spawner  # keeps its thread alive, and with it the process
        self._process, self._group, self._root = spawned.process, spawned.group, spawned.root
        self._words = b""
        self._destroying = threading.Lock()

    async def alive(self) -> bool:
        return self._process.poll() is None

    async def destroy(self) -> None:
        self.link.fail("the sandbox is closed")
        await asyncio.to_thread(self._end)

    def usage(self) -> Usage:
        used = read_usage(self._group.directories) if self._group else {}
        return used | (self._root.usage() if self._root else {})

    async def freeze(self) -> Reference:
        return await asyncio.to_thread(self._root.freeze)

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace")

    def _end(self) -> None:
        with self._destroying:
            if self._process.stderr.closed:
                return
            try:
                self._end_process()
                if self._group:
                    self._group.remove()
                if self._root:
                    self._root.release()
            except (OSError, subprocess.TimeoutExpired) as error:
                log.warning("bwrap %d is left to the reaper: %s", self._process.pid, error)
            os.set_blocking(self._process.stderr.fileno(), False)
            self._words = self._process.stderr.read(LAST_WORDS_BYTES) or b""
            self._process.stderr.close()

    def _end_process(self) -> None:
        # The runner exits when its connection closes. As it is process 1, all other processes in
        # the namespace die with it, and bwrap then reaps it. Killing bwrap instead would leave a
        # zombie for the host's init.
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(EXIT_S)
