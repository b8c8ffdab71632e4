"""What a process of the agent starts with: limits, control groups, user, capabilities, and a filter
of system calls.

All of it is set anew for each process, so that it never depends on what ran before."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import socket
import struct
from collections.abc import Iterable, Iterator

from . import kernel
from .files import RUNNER_ID, Account

# System calls that the agent may not use, in addition to those that the runtime forbids. Namespaces
# do not isolate these: keyrings and io_uring outlive or bypass the sandbox, and the others are
# frequent sources of kernel vulnerabilities.
DENIED = (
    "add_key",
    "request_key",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "mq_open",  # also where RLIMIT_MSGQUEUE has no effect
)
# Calls that allocate memory outside of any process or size-limited directory.
HOARDS = ("memfd_create", "memfd_secret", "shmget", "semget", "msgget")
# Calls that could give a process of root's the user id of the runner.
SET_IDS = ("setuid", "setreuid", "setresuid")
# The socket families that the network namespace isolates. AF_VSOCK, for example, reaches the
# hypervisor from any namespace.
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
NETLINK = socket.AF_NETLINK  # refused with HOARDS, as the memory of such sockets is not counted
# Machine -> (AUDIT_ARCH, numbers of `socket`, of DENIED, HOARDS and SET_IDS), from the kernel's
# tables.
TABLES = {
    "x86_64": (
        *(0xC000003E, 41, (248, 249, 250, 321, 298, 323, 425, 240)),
        *((319, 447, 29, 64, 68), (105, 113, 117)),
    ),
    "aarch64": (
        *(0xC00000B7, 198, (217, 218, 219, 280, 241, 282, 425, 180)),
        *((279, 447, 194, 190, 186), (146, 145, 147)),
    ),
}
FIRST_X32 = 0x40000000  # x32 numbers of x86-64 calls start here; other machines have none so high

# struct seccomp_data: offsets of the call number, architecture and low half of argument 0, which is
# followed by the other arguments of 8 bytes each.
NUMBER, ARCH, ARGUMENT = 0, 4, 16
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
PR_SET_SECCOMP, MODE_FILTER = 22, 2


class Filter:
    """A program for seccomp(2). OSError for a machine whose call numbers are not in the table.

    denies_hoards: also refuse HOARDS. denied_id: the user id that SET_IDS must not set.
    """

    def __init__(self, denies_hoards: bool, denied_id: int):
        machine = os.uname().machine
        if machine not in TABLES:
            raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
        arch, socket_number, denied, hoards, set_ids = TABLES[machine]
        refuse = (RETURN, 0, 0, ERROR | errno.EPERM)
        program = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, arch), refuse]
        program += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, FIRST_X32), refuse]
        for number in (*denied, *(hoards if denies_hoards else ())):
            program += [(EQUAL, 0, 1, number), refuse]
        for number in set_ids:
            checks = [(LOAD, 0, 0, ARGUMENT + 8 * each) for each in range(3)]
            steps = [step for check in checks for step in (check, (EQUAL, 0, 1, denied_id), refuse)]
            program += [(EQUAL, 0, len(steps) + 1, number), *steps, (RETURN, 0, 0, ALLOW)]
        program += [(EQUAL, 1, 0, socket_number), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, ARGUMENT)]
        for family in FAMILIES if denies_hoards else (*FAMILIES, NETLINK):
            program += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
        program += [(RETURN, 0, 0, ERROR | errno.EAFNOSUPPORT)]
        self._code = ctypes.create_string_buffer(
            b"".join(struct.pack("HBBI", *step) for step in program)
        )
        header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header)

    def apply(self) -> None:
        """Applies the filter permanently to this process and all its future children."""
        kernel.call("prctl", PR_SET_SECCOMP, MODE_FILTER, self._header, 0, 0)


CAPABILITIES = {
    **{"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7},
}
PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 8, 24, 38
CAPABILITY_VERSION = 0x20080522
LOWEST_GROUP = 512  # above every descriptor of a session or a job
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
    """uid: its user and group. limits: further limits, each for one process. groups: open files to
    which a process writes "0" to enter a control group. capabilities: names of those that it keeps.
    denies_hoards: see `Filter`. score: this process's oom_score_adj, open; None to open it here."""

    def __init__(
        self,
        uid: int,
        limits: dict[str, int],
        groups: list[int],
        capabilities: list[str],
        denies_hoards: bool,
        score: int | None = None,
    ):
        self.uid, self.denies_hoards = uid, denies_hoards
        self._limits = _attainable(LIMITS | {name: (n, n) for name, n in limits.items()})
        self._groups = list(map(_move_up, groups))
        self._capabilities = [CAPABILITIES[name] for name in capabilities]
        self._excess = _bounding_set() - set(self._capabilities)
        self._filter = Filter(denies_hoards, RUNNER_ID)
        # Writing to an open file does not require this process to be dumpable.
        self._score = _open_score() if score is None else _move_up(score)

    def separate(self) -> None:
        """Gives this process, which is root, other ids than the agent's, who can therefore neither
        trace it nor change its limits or priority. Only the ids for file access are the agent's."""
        os.setgroups([])
        if self.uid == 0:
            kernel.call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
            os.setresuid(RUNNER_ID, RUNNER_ID, RUNNER_ID)
        self._access_files()

    def _access_files(self) -> None:
        permitted = _mask("CapPrm")
        try:
            _set_capabilities(permitted, permitted)
            kernel.call("setfsgid", self.uid)
            kernel.call("setfsuid", self.uid)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            # gVisor has no ids for file access. The real and the saved ones still keep the agent
            # from tracing this process, and from its limits and signals.
            os.setresgid(-1, self.uid, -1)
            os.setresuid(-1, self.uid, -1)
            _set_capabilities(permitted, permitted)

    @contextlib.contextmanager
    def as_agent(self) -> Iterator[None]:
        """Within the block, this process has the agent's user. No process of the agent may live."""
        own = os.geteuid()
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(own)
            self._access_files()

    @contextlib.contextmanager
    def expendable(self) -> Iterator[None]:
        """The OOM killer picks processes that are forked within the block before this one: they
        inherit the score."""
        self._set_score(b"1000")
        try:
            yield
        finally:
            self._set_score(b"0")

    def _set_score(self, score: bytes) -> None:
        if self._score is not None:
            os.write(self._score, score)

    def take(self, account: Account | None, fds: Iterable[int]) -> None:
        """Gives this process, a new child of the runner, the agent's rights.

        account: another user than the agent's. fds: this process's pipes.
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
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        drop_capabilities(self._capabilities if os.getuid() == self.uid else ())
        self._filter.apply()


def _open_score() -> int | None:
    """None where /proc is read-only and the host is another machine. The agent's processes could
    lower a score that they inherit, so it protects this one from mishaps only."""
    try:
        return os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=kernel.proc())
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return None


def _move_up(number: int) -> int:
    """Moves a descriptor out of the way of those that children are given. It is inherited from the
    host's process under its number there, which may be any."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, LOWEST_GROUP)
    os.close(number)
    return moved


def drop_capabilities(kept: Iterable[int]) -> None:
    """Drops all capabilities of this process except `kept`, which it must have."""
    mask = sum(1 << number for number in kept)
    _set_capabilities(mask, mask)


def _set_capabilities(effective: int, permitted: int) -> None:
    low = struct.pack("3I", effective, permitted, 0)  # none is inheritable
    kernel.call("capset", struct.pack("Ii", CAPABILITY_VERSION, 0), low + bytes(12))


def _attainable(wanted: dict[str, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The limits of every resource: what is wanted, as far as this process's own permit it."""
    by_number = {getattr(resource, name): limit for name, limit in wanted.items()}
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    limits = {}
    for number in filter(_is_settable, numbers):
        most = resource.getrlimit(number)[1]
        soft, hard = by_number.get(number, (NO_LIMIT, NO_LIMIT))
        limits[number] = (_smaller(soft, most), _smaller(hard, most))
    return limits


def _is_settable(number: int) -> bool:
    """gVisor refuses a limit that it does not have, even as it is."""
    try:
        resource.setrlimit(number, resource.getrlimit(number))
    except ValueError:
        return False
    return True


def _smaller(one: int, other: int) -> int:
    return min(one, other, key=lambda value: float("inf") if value == NO_LIMIT else value)


def _bounding_set() -> set[int]:
    mask = _mask("CapBnd")
    return {number for number in range(mask.bit_length()) if mask >> number & 1}


def _mask(name: str) -> int:
    status = kernel.read("self/status").decode()
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
    return int(masks[name], 16)


def _become(account: Account, fds: Iterable[int]) -> None:
    for fd in fds:  # or it could not open /dev/stdout, a link to one
        os.fchown(fd, account.uid, account.gid)
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
