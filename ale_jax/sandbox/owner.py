"""Which process owns a sandbox, so that any later process can tell whether it still lives."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process, told apart from a later one with the same number by its start time.

    boot: id of the machine's boot; namespace: inode of the process's pid namespace;
    start: clock ticks between boot and its start (proc(5), field 22 of stat).
    """

    boot: str
    namespace: int
    pid: int
    start: int

    @classmethod
    def current(cls) -> Owner:
        return cls(_boot(), _namespace(), os.getpid(), _start(os.getpid()))

    @classmethod
    def parse(cls, text: str) -> Owner:
        """The inverse of str(). ValueError if `text` is not an owner."""
        boot, namespace, pid, start = text.split(".")
        return cls(boot, int(namespace), int(pid), int(start))

    def __str__(self) -> str:
        return f"{self.boot}.{self.namespace}.{self.pid}.{self.start}"

    def is_here(self) -> bool:
        """Whether this process can judge it: same boot of the same machine, same pid namespace."""
        return (self.boot, self.namespace) == (_boot(), _namespace())

    def is_dead(self) -> bool:
        """Whether it has ended; asked only of one that `is_here`."""
        assert self.is_here(), self
        try:
            return _start(self.pid) != self.start
        except (FileNotFoundError, ProcessLookupError):
            return True


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start(pid: int) -> int:
    # The name, in parentheses, may hold anything; what follows the last one is plain.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[19])
