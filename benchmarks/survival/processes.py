"""The processes of one run, found by a variable of their environment, and by descent."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "ALE_SURVIVAL_MARK"  # its value also names a file, which faults inside a run touch
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
GONE_S = 10.0


@dataclasses.dataclass(frozen=True)
class Process:
    """start: clock ticks since boot, which tell it from a later process of the same pid."""

    pid: int
    start: int

    def exists(self) -> bool:
        row = _row(self.pid)
        return row is not None and row.start == self.start

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.exists():
                os.kill(self.pid, number)

    def words(self) -> list[str]:
        """Its command line."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_text(errors="replace").split("\0")
        except GONE:
            return [""]


@dataclasses.dataclass(frozen=True)
class _Row:
    parent: int
    start: int


class Family:
    """All processes of a run: those with its mark, what they started, and what was seen before.

    The last two are needed because Ray's workers overwrite their environment with their title.
    """

    def __init__(self, mark: str):
        self._mark = f"{MARK}={mark}".encode()
        self._seen: set[Process] = set()

    def all(self) -> list[Process]:
        rows = {pid: row for pid in _pids() if (row := _row(pid))}
        mine = {pid for pid in rows if self._mark in _environment(pid)}
        mine |= {each.pid for each in self._seen if pid_is(each, rows)}
        while below := {pid for pid, row in rows.items() if row.parent in mine} - mine:
            mine |= below
        found = {Process(pid, rows[pid].start) for pid in mine}
        self._seen |= found
        return sorted(found, key=lambda each: each.pid)

    def workers(self) -> list[Process]:
        """The Ray actors that play episodes."""
        return [each for each in self.all() if each.words()[0].startswith("ray::RolloutActor")]

    def named(self, program: str) -> list[Process]:
        return [each for each in self.all() if Path(each.words()[0]).name == program]

    def sandboxes(self) -> list[list[Process]]:
        """The processes of each sandbox."""
        parents = {worker.pid for worker in self.workers()}
        rows = {each: row for each in self.all() if (row := _row(each.pid))}
        heads = [each for each, row in rows.items() if row.parent in parents]
        return [_tree(head, rows) for head in heads if "bwrap" in " ".join(head.words())]

    def end(self) -> int:
        """Kills all of them; returns how many there were."""
        count, deadline = len(self.all()), time.monotonic() + GONE_S
        while left := self.all():
            kill(left)
            assert time.monotonic() < deadline, f"processes cannot be killed: {left}"
            time.sleep(0.02)
        return count


def kill(processes: Iterable[Process], number: int = signal.SIGKILL) -> None:
    for each in processes:
        each.send(number)


def pid_is(process: Process, rows: dict[int, _Row]) -> bool:
    return process.pid in rows and rows[process.pid].start == process.start


def _tree(head: Process, rows: dict[Process, _Row]) -> list[Process]:
    below = [each for each, row in rows.items() if row.parent == head.pid]
    return [head, *(process for each in below for process in _tree(each, rows))]


def _pids() -> Iterable[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _row(pid: int) -> _Row | None:
    """None if there is no such process, or only its exit status."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except GONE:
        return None
    return None if fields[0] in "ZX" else _Row(int(fields[1]), int(fields[19]))


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except GONE:
        return []
