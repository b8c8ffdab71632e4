"""CPU and memory usage of a sandbox, from its cgroups of version 1 or 2."""

import contextlib
import os
from collections.abc import Callable, Iterable

INSIDE = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/memory")

Usage = dict[str, float | int | None]


def read_usage(directories: Iterable[str | os.PathLike]) -> Usage:
    """Returns cpu_seconds and memory_bytes; None for values that none of the directories has."""
    directories = list(directories)
    return {
        "cpu_seconds": _first((_cpu_seconds_v2, _cpu_seconds_v1), directories),
        "memory_bytes": _first((_memory_bytes_v2, _memory_bytes_v1), directories),
    }


def _first(
    readers: Iterable[Callable[[str | os.PathLike], float]],
    directories: list[str | os.PathLike],
) -> float | None:
    for read in readers:
        for directory in directories:
            # The file belongs to the other version or to another controller.
            with contextlib.suppress(OSError, KeyError):
                return read(directory)
    return None


def _cpu_seconds_v1(directory: str | os.PathLike) -> float:
    return int(_text(directory, "cpuacct.usage")) / 1e9


def _cpu_seconds_v2(directory: str | os.PathLike) -> float:
    return _fields(directory, "cpu.stat")["usage_usec"] / 1e6


def _memory_bytes_v1(directory: str | os.PathLike) -> int:
    used = int(_text(directory, "memory.usage_in_bytes"))
    return max(0, used - _fields(directory, "memory.stat")["total_inactive_file"])


def _memory_bytes_v2(directory: str | os.PathLike) -> int:
    used = int(_text(directory, "memory.current"))
    return max(0, used - _fields(directory, "memory.stat")["inactive_file"])


def _text(directory: str | os.PathLike, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read()


def _fields(directory: str | os.PathLike, name: str) -> dict[str, int]:
    lines = (line.split() for line in _text(directory, name).splitlines())
    return {field: int(value) for field, value in lines}
