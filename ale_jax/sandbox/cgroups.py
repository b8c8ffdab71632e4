"""Memory, process and CPU limits through cgroups (version 1 or 2, as mounted on this host), and the
identity of a sandbox's owner process, by which the leftovers of a dead owner are recognized."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ale_jax.sandbox.spec import SandboxSpec


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process, distinguished by its start time from a later one with the same pid.

    boot: boot id of the machine; namespace: inode of the process's pid namespace;
    start: clock ticks between boot and process start (proc(5), field 22 of stat).
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
        """Whether it can be checked from here: it has the same boot and pid namespace."""
        return (self.boot, self.namespace) == (_boot(), _namespace())

    def is_dead(self) -> bool:
        """Whether it has ended. Call only if `is_here()` is true."""
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
    # The name, in parentheses, may contain anything, so parse only what follows the last ")".
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[19])


PREFIX = "ale-"
EMPTY_S = 2.0
CPU_PERIOD_US = 100_000


class CgroupsUnavailable(Exception):
    """This process cannot limit others through cgroups; the message says why."""


@dataclasses.dataclass(frozen=True)
class Cgroup:
    """The cgroups of one sandbox: one directory (version 2) or one per controller (version 1)."""

    directories: tuple[Path, ...]

    def open_gates(self) -> list[int]:
        """Open descriptors. A process that writes "0" to each of them enters the cgroup, whatever
        its user: the kernel checks the rights of who has opened them."""
        gates: list[int] = []
        try:
            for directory in self.directories:
                gates.append(os.open(directory / "cgroup.procs", os.O_WRONLY))
        except OSError:
            close_all(gates)
            raise
        return gates

    def remove(self) -> None:
        """Kills the remaining processes and removes it. OSError if a process cannot be killed."""
        deadline = time.monotonic() + EMPTY_S
        for directory in self.directories:
            while directory.exists():
                _kill_members(directory)
                with contextlib.suppress(OSError):
                    directory.rmdir()
                    break
                if time.monotonic() > deadline:
                    directory.rmdir()
                time.sleep(0.001)


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """Where new cgroups are created, and where to look for existing ones.

    parents: controller -> parent directory of new cgroups. In version 1 this is the cgroup of this
        process where that can be determined; in version 2 all controllers share one directory.
    roots: the mount points, below which cgroups of dead owners may be found.
    """

    version: int
    parents: dict[str, Path]
    roots: frozenset[Path]

    def create(self, name: str, spec: SandboxSpec) -> Cgroup:
        """Creates the cgroups and sets their limits. If it fails, removes them; raises OSError."""
        group = Cgroup(tuple({parent / name: None for parent in self.parents.values()}))
        made: list[Path] = []
        try:
            for directory in group.directories:
                directory.mkdir()
                made.append(directory)
            for controller, file, value in self._limits(spec):
                (self.parents[controller] / name / file).write_text(str(value))
        except OSError:
            Cgroup(tuple(made)).remove()  # an existing one belongs to someone else
            raise
        return group

    def of(self, pid: int) -> Cgroup | None:
        """The cgroup of a process; None if it is not visible from here."""
        mounts, groups = _mounts(), _groups(pid)
        names = [""] if self.version == 2 else list(self.parents)
        paths = [mounts[name] / groups.get(name, "/").strip("/") for name in names]
        return Cgroup(tuple(paths)) if all(path.is_dir() for path in paths) else None

    def adopt(self, pid: int) -> None:
        """Moves a process into the cgroup in which new cgroups are created. Errors: OSError."""
        for parent in set(self.parents.values()):
            (parent / "cgroup.procs").write_text(str(pid))

    def reap(self) -> int:
        """Removes the cgroups of dead owners; returns the number of sandboxes they belonged to."""
        found = (
            Path(folder, name)
            for root in self.roots
            for folder, names, _ in os.walk(root)
            for name in names
            if name.startswith(PREFIX)
        )
        dead = [directory for directory in found if _is_abandoned(directory.name)]
        for directory in dead:
            Cgroup((directory,)).remove()
        return len({directory.name for directory in dead})

    @property
    def limits_cpus(self) -> bool:
        return "cpu" in self.parents

    def _limits(self, spec: SandboxSpec) -> list[tuple[str, str, int | str]]:
        memory = spec.memory_mb << 20
        if self.version == 2:
            ram, swap = ("memory", "memory.max", memory), ("memory", "memory.swap.max", 0)
        else:
            ram = ("memory", "memory.limit_in_bytes", memory)
            swap = ("memory", "memory.memsw.limit_in_bytes", memory)
        # A kernel without swap accounting lacks the file; a host without swap does not need it.
        swaps = [swap] if host_swaps() else []
        return [ram, *swaps, ("pids", "pids.max", spec.pids), *self._cpu_limits(spec.cpus)]

    def _cpu_limits(self, cpus: float) -> list[tuple[str, str, int | str]]:
        quota = int(cpus * CPU_PERIOD_US)
        if not cpus:
            return []
        if self.version == 2:
            return [("cpu", "cpu.max", f"{quota} {CPU_PERIOD_US}")]
        return [
            ("cpu", "cpu.cfs_period_us", CPU_PERIOD_US),
            ("cpu", "cpu.cfs_quota_us", quota),
        ]


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def find() -> Hierarchy:
    """The hierarchy in which this process may create cgroups. Errors: CgroupsUnavailable."""
    mounts = _mounts()
    if {"memory", "pids"} <= mounts.keys():
        own = _groups()
        held = [c for c in ("memory", "pids", "cpu", "cpuacct") if c in mounts]
        parents = {c: _own_or_root(mounts[c], own.get(c, "/")) for c in held}
        hierarchy = Hierarchy(1, parents, frozenset(mounts[c] for c in parents))
    elif "" in mounts:
        parents = dict.fromkeys(("memory", "pids", "cpu"), mounts[""])
        hierarchy = Hierarchy(2, parents, frozenset([mounts[""]]))
        _delegate(mounts[""])
    else:
        raise CgroupsUnavailable("no memory and pids controllers are mounted below /sys/fs/cgroup")
    _prove(hierarchy)
    return hierarchy


def _is_abandoned(name: str) -> bool:
    try:
        owner = Owner.parse(name.removeprefix(PREFIX).rpartition("-")[0])
    except ValueError:
        return False  # not created by this package
    return owner.is_here() and owner.is_dead()


def _prove(hierarchy: Hierarchy) -> None:
    try:
        hierarchy.create(
            f"{PREFIX}{Owner.current()}-probe{time.monotonic_ns()}", SandboxSpec()
        ).remove()
    except OSError as error:
        raise CgroupsUnavailable(f"cannot create a cgroup: {error.strerror}") from error


def _delegate(root: Path) -> None:
    try:
        (root / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    except OSError as error:
        reason = f"cannot delegate the controllers of {root}: {error.strerror}"
        raise CgroupsUnavailable(reason) from error


def _mounts() -> dict[str, Path]:
    """Mount points by controller (version 1), and the mount point of version 2 under ""."""
    mounts = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, directory, kind, options, *_ = line.split()
        if kind == "cgroup":
            mounts.update(dict.fromkeys(options.split(","), Path(directory)))
        elif kind == "cgroup2":
            mounts[""] = Path(directory)
    return mounts


def _groups(pid: int | str = "self") -> dict[str, str]:
    """The cgroup of a process, by controller (version 1), or under "" (version 2)."""
    groups = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _own_or_root(mount: Path, group: str) -> Path:
    # In a container, the path may be the one on the host, which does not exist here.
    own = mount / group.strip("/")
    return own if own.is_dir() else mount


def host_swaps() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def _kill_members(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (directory / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
