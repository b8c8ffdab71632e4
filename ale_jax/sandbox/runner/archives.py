"""Tar archives of the agent's files, packed and unpacked by processes of the agent."""

import contextlib
import os
from typing import Any

from .files import WORK
from .link import RunnerStream
from .loop import READ, WRITE, Loop
from .processes import Agent, Child
from .wire import CHUNK

CHANGED = 1  # tar's exit code if a file, such as a log, changed while it was packed


class Archives:
    """Sends and receives archives. Errors: RuntimeError if tar fails."""

    def __init__(self, loop: Loop, agent: Agent):
        self._loop, self._agent = loop, agent

    async def pack(
        self, directory: str, words: list[str], request: dict[str, Any], stream: RunnerStream
    ) -> dict:
        """Sends an archive of what the agent may read. words: tar arguments: which files."""
        argv = ["tar", "--create", "--sparse", "--ignore-failed-read", "--directory", directory]
        archive_r, archive_w = os.pipe()
        child = self._spawn([*argv, *words], {1: archive_w}, archive_r)
        room = request["max_bytes"]
        with open(archive_r, "rb", buffering=0) as archive:
            while room >= 0:
                await self._loop.ready(archive_r, READ)
                if not (chunk := archive.read(CHUNK)):
                    break
                await stream.send(chunk)
                room -= len(chunk)
        await child.ended.wait()  # past max_bytes, the closed pipe ends it
        if room < 0:
            raise RuntimeError(f"the archive is longer than {request['max_bytes']} bytes")
        return _success("tar --create", child, CHANGED)

    async def unpack(self, directory: str, words: list[str], stream: RunnerStream) -> dict:
        """Unpacks the archive that `stream` brings. words: tar arguments: whose the files are."""
        argv = ["tar", "--extract", "--preserve-permissions", *words, "--directory", directory]
        archive_r, archive_w = os.pipe()
        child = self._spawn(argv, {0: archive_r}, archive_w)
        with contextlib.suppress(BrokenPipeError), open(archive_w, "wb", buffering=0) as archive:
            while data := await stream.receive():
                unsent = memoryview(data)
                while unsent:
                    unsent = unsent[archive.write(unsent) or 0 :]
                    if unsent:
                        await self._loop.ready(archive_w, WRITE)
        await child.ended.wait()
        return _success("tar --extract", child)

    def _spawn(self, argv: list[str], theirs: dict[int, int], ours: int) -> Child:
        """theirs, ours: the ends of a pipe. Closes those that this process does not need."""
        try:
            with self._agent.unlimited():
                child = self._agent.spawn(argv, theirs, WORK)
        except BaseException:
            os.close(ours)
            raise
        finally:
            for fd in theirs.values():
                os.close(fd)
        os.set_blocking(ours, False)
        return child


def _success(what: str, child: Child, also: int = 0) -> dict:
    if child.exit_code not in (0, also):
        raise RuntimeError(f"{what} ended with status {child.exit_code}")
    return {}
