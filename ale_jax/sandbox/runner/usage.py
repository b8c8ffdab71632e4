"""CPU and memory usage of a sandbox, from its cgroups of version 1 or 2, and the memory that its
sockets hold in their buffers, which belongs to no process: sock_diag(7)."""

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

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


SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DONE, ERROR = 4, 20, 3, 2
DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
HEAD = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
ATTRIBUTE = struct.Struct("=HH")  # length with this head, type
BUFFER = 1 << 16
# struct unix_diag_req: family, protocol, states, inode, show, cookie. Its answer takes 16 bytes,
# before attributes of which UNIX_DIAG_MEMINFO holds the sizes.
UNIX = (struct.pack("=BBHIII8x", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20), 16, 5)
# struct inet_diag_req_v2: family, protocol, extensions, states, socket. Its answer takes 72 bytes,
# before attributes of which INET_DIAG_SKMEMINFO holds the sizes.
INET = [
    (struct.pack("=BBBxI48x", family, protocol, 1 << 6, 0xFFFFFFFF), 72, 7)
    for family in (socket.AF_INET, socket.AF_INET6)
    for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
]
# Positions in the sizes: allocated for receiving and sending, queued for sending, backlog.
COUNTED = (0, 2, 5, 7)


class Sockets:
    """The sockets of this network namespace."""

    @staticmethod
    def are_listed() -> bool:
        """Whether the kernel lists them, which gVisor does not."""
        try:
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG).close()
        except OSError:
            return False
        return True

    def __init__(self):
        self._diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)

    def memory(self) -> int:
        """Bytes that all of them hold."""
        return sum(
            sum(sizes[position] for position in COUNTED)
            for request, size, kind in (UNIX, *INET)
            for sizes in self._sizes(request, size, kind)
        )

    def _sizes(self, request: bytes, size: int, kind: int) -> Iterator[tuple[int, ...]]:
        head = HEAD.pack(HEAD.size + len(request), SOCK_DIAG_BY_FAMILY, DUMP, 0, 0)
        self._diag.send(head + request)
        while True:
            answer = self._diag.recv(BUFFER)
            while answer:
                length, type_, _, _, _ = HEAD.unpack_from(answer)
                if type_ == DONE:
                    return
                if type_ == ERROR:
                    number = -struct.unpack_from("=i", answer, HEAD.size)[0]
                    raise OSError(number, f"sock_diag: {os.strerror(number)}")
                attributes = answer[HEAD.size + size : length]
                while attributes:
                    taken, found = ATTRIBUTE.unpack_from(attributes)
                    if found == kind:
                        yield struct.unpack_from("=9I", attributes, ATTRIBUTE.size)
                    attributes = attributes[(taken + 3) & ~3 :]
                answer = answer[(length + 3) & ~3 :]
