"""What a process of the agent starts with: limits, control groups, user and capabilities.

All of it is set anew for each process, so that it never depends on what ran before."""

import os
import resource
import struct
from collections.abc import Iterable

from . import kernel
from .files import Account
from .seccomp import Filter

CAPABILITIES = {
    **{"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7},
    **{"SETPCAP": 8},
}
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITY_VERSION = 0x20080522
NO_LIMIT = resource.RLIM_INFINITY
# Soft and hard limit of each resource that is not unlimited. The kernel counts queued signals, and
# descriptors that are sent over sockets, for each user of the host, so they are bounded. A POSIX
# message queue would outlive a reset.
LIMITS = {
    "RLIMIT_CORE": (0, 0),
    "RLIMIT_MEMLOCK": (8 << 20, 8 << 20),
    "RLIMIT_MSGQUEUE": (0, 0),
    "RLIMIT_NICE": (0, 0),
    "RLIMIT_NOFILE": (1024, 4096),
    "RLIMIT_RTPRIO": (0, 0),
    "RLIMIT_SIGPENDING": (1024, 1024),
    "RLIMIT_STACK": (8 << 20, NO_LIMIT),
}


class Rights:
    """limits: further limits, each for one process. groups: open files to which a process writes
    "0" to enter a control group. capabilities: names of those that it keeps. uid, gid: its user.
    denies_hoards: see `Filter`."""

    def __init__(
        self,
        uid: int,
        gid: int,
        limits: dict[str, int],
        groups: list[int],
        capabilities: list[str],
        denies_hoards: bool,
    ):
        self.uid, self._gid = uid, gid
        self._limits = _attainable(LIMITS | {name: (n, n) for name, n in limits.items()})
        self._groups = groups
        self._capabilities = [CAPABILITIES[name] for name in capabilities]
        self._excess = _bounding_set() - set(self._capabilities)
        self._filter = Filter(denies_hoards)

    def use_for_files(self) -> None:
        """Makes this process, if it is root and the agent is not, access files with the agent's
        rights only. Its other ids stay root's, so that the agent can neither signal nor trace it,
        nor change its limits."""
        if os.getuid() == 0 and self.uid != 0:
            os.setgroups([])
            os.setresgid(self._gid, self._gid, self._gid)
            os.setresuid(0, self.uid, 0)
            _use_capabilities()

    def take(self, account: Account | None, fds: Iterable[int]) -> None:
        """Gives this process, a new child of the runner, the agent's rights.

        account: another user than the agent's. fds: its pipes.
        """
        for group in self._groups:
            os.write(group, b"0")
        for number, limit in self._limits.items():
            resource.setrlimit(number, limit)
        kernel.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        for capability in self._excess:
            kernel.call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
        if account:
            _become(account, fds)
        else:
            os.setresgid(self._gid, self._gid, self._gid)
            os.setresuid(self.uid, self.uid, self.uid)
        drop_capabilities(self._capabilities if os.getuid() == self.uid else ())
        self._filter.apply()


def drop_capabilities(kept: Iterable[int]) -> None:
    """Drops all capabilities of this process except `kept`, which it must have."""
    _have(sum(1 << number for number in kept))


def _use_capabilities() -> None:
    """Makes those effective that this process still has. Without a runtime's world they are for
    changing users only; none of them gives access to files."""
    status = kernel.read("self/status").decode()
    (permitted,) = [int(line[7:], 16) for line in status.splitlines() if line.startswith("CapPrm")]
    _have(permitted)


def _have(mask: int) -> None:
    low = struct.pack("3I", mask, mask, 0)  # effective, permitted, inheritable
    kernel.call("capset", struct.pack("Ii", CAPABILITY_VERSION, 0), low + bytes(12))


def _attainable(wanted: dict[str, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The limits of every resource: what is wanted, as far as this process's own permit it."""
    by_number = {getattr(resource, name): limit for name, limit in wanted.items()}
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    limits = {}
    for number in numbers:
        most = resource.getrlimit(number)[1]
        soft, hard = by_number.get(number, (NO_LIMIT, NO_LIMIT))
        limits[number] = (_smaller(soft, most), _smaller(hard, most))
    return limits


def _smaller(one: int, other: int) -> int:
    return min(one, other, key=lambda value: float("inf") if value == NO_LIMIT else value)


def _bounding_set() -> set[int]:
    """The capabilities that a child must drop from its bounding set; none if it may not."""
    status = kernel.read("self/status").decode()
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
    bounding, effective = int(masks["CapBnd"], 16), int(masks["CapEff"], 16)
    if not effective >> CAPABILITIES["SETPCAP"] & 1:
        return set()
    return {number for number in range(bounding.bit_length()) if bounding >> number & 1}


def _become(account: Account, fds: Iterable[int]) -> None:
    for fd in fds:  # or it could not open /dev/stdout, a link to one
        os.fchown(fd, account.uid, account.gid)
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
