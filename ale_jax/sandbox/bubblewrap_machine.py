"""A running bwrap, with what belongs to it on the host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ale_jax.sandbox import cgroups
from ale_jax.sandbox.disk.roots import HeldRoot
from ale_jax.sandbox.disk.store import Reference
from ale_jax.sandbox.host_ids import HostId
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.runner.usage import Usage, read_usage
from ale_jax.sandbox.vitals import Vitals, first_process, read_vitals

LEAVE_S, EXIT_S = 0.5, 5.0
LAST_WORDS_BYTES = 2000

log = logging.getLogger(__name__)


class Share(NamedTuple):
    """What one sandbox has of the host: the cgroup of its agent, its user, and its root on disk.
    Each is None where it has none, or where this process may not give it."""

    group: cgroups.Cgroup | None = None
    user: HostId | None = None
    root: HeldRoot | None = None

    def free(self) -> Share:
        """Frees every part, also if another cannot be freed, which is logged. Returns what may be
        freed later: a cgroup in which a process has not ended yet."""
        left = Share()
        if self.group:
            try:
                self.group.remove()
            except OSError as error:
                left = Share(group=self.group)
                words = "is left to another attempt, or to the reaper when this process has ended"
                log.warning("cgroup %s %s: %s", self.group.directories[0].name, words, error)
        for name, part in (("user id", self.user), ("root on disk", self.root)):
            if part:
                try:
                    part.release()
                except Exception as error:  # of any kind: the other parts do not depend on it
                    log.warning("a %s is left until this process ends: %s", name, error)
        return left


class Started(NamedTuple):
    """gates: the descriptors of the runner through which processes enter the agent's cgroup.
    connection: the socket to the runner."""

    process: subprocess.Popen
    share: Share
    gates: list[int]
    connection: socket.socket


def start(share: Share, line: list[str], fds: list[int]) -> Started:
    """Runs the command line of a sandbox. If that fails, frees its share.

    Errors: OSError; ValueError for a command line with a NUL.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs, contextlib.ExitStack() as opened:
            gates = share.group.open_gates() if share.group else []
            opened.callback(cgroups.close_all, gates)
            process = subprocess.Popen(
                line,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                pass_fds=[*fds, *gates],
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal must not reach it directly
            )
    except BaseException:
        ours.close()
        share.free()
        raise
    return Started(process, share, gates, ours)


class BubblewrapMachine:
    """A running bwrap with its share of the host and the socket to its runner."""

    def __init__(self, started: Started, link: Link, spawner: ThreadPoolExecutor):
        self.link = link
        self._spawner = spawner  # keeps its thread alive, and with it the process
        self._process, self._share = started.process, started.share
        self._left = started.share  # what is still to be freed
        self._words = b""
        self._runner_pid: int | None = None
        self._destroying = threading.Lock()

    async def alive(self) -> bool:
        return self._process.poll() is None

    async def destroy(self) -> None:
        """Called again, it frees what could not be freed before."""
        self.link.fail("the sandbox is closed")
        await asyncio.to_thread(self._end)

    def vitals(self) -> Vitals | None:
        self._runner_pid = self._runner_pid or first_process(self._process.pid)
        return read_vitals(self._runner_pid) if self._runner_pid else None

    def usage(self) -> Usage:
        group, root = self._share.group, self._share.root
        used = read_usage(group.directories) if group else {}
        return used | (root.usage() if root else {})

    async def freeze(self) -> Reference:
        return await asyncio.to_thread(self._share.root.freeze)

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace")

    def _end(self) -> None:
        with self._destroying:
            try:
                self._end_process()
            except (OSError, subprocess.TimeoutExpired) as error:
                # Its processes may still use what it has.
                words = "does not end, and keeps its share until another attempt"
                log.warning("bwrap %d %s: %s", self._process.pid, words, error)
            else:
                self._left = self._left.free()
            self._take_last_words()

    def _take_last_words(self) -> None:
        stderr = self._process.stderr
        if stderr is not None and not stderr.closed:
            os.set_blocking(stderr.fileno(), False)
            self._words = stderr.read(LAST_WORDS_BYTES) or b""
            stderr.close()

    def _end_process(self) -> None:
        # The runner exits when its connection closes. As it is process 1, all other processes in
        # the namespace die with it, and bwrap then reaps it. Killing bwrap instead would leave a
        # zombie for the host's init.
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(EXIT_S)
