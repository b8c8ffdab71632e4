"""The agent's user and processes inside the sandbox, and a memory limit for where cgroups are
unavailable.

This limit is enforced by polling, so processes can exceed it for a moment. Therefore each process
also has a hard limit (RLIMIT_AS), and system calls that hold memory without a process (HOARDS in
seccomp.py) are forbidden.
"""

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from .files import WORK, Account
from .loop import READ, Event, Loop
from .seccomp import Filter

DEATH_S = 5.0
RLIMITS = {"RLIMIT_CORE": 0, "RLIMIT_MSGQUEUE": 0}  # a POSIX message queue would outlive a reset
UTF8_LOCALE = "/usr/lib/locale/C.utf8"
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": WORK,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "DEBIAN_FRONTEND": "noninteractive",
}

# In an image without certificates, the packed ones of the host are used for the network.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",  # openSUSE
)
PACKED_BUNDLE = "/.ale/certificates.pem"
# For OpenSSL (so python and curl), git, node, and Python's requests.
BUNDLE_VARIABLES = {"SSL_CERT_FILE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"}


class Child:
    """A process that the runner started, the leader of its own process group and session."""

    def __init__(self, loop: Loop, pid: int):
        self.pid = pid
        self.exit_code: int | None = None
        self.ended = Event(loop)


class Limits(NamedTuple):
    """The limits of the agent's processes that the runner enforces.

    rlimits: of each process. memory_bytes: of all processes together; 0 for none.
    """

    rlimits: dict[str, int]
    memory_bytes: int


class Agent:
    """The agent's user inside the sandbox, and its processes.

    uid, gid: the agent's ids, which this process uses for file access, too.
    env: further environment variables of its processes.
    substitutes: commands for programs that the image may lack.
    """

    def __init__(
        self,
        loop: Loop,
        uid: int,
        gid: int,
        limits: Limits,
        env: dict[str, str],
        substitutes: dict[str, list[str]],
    ):
        self._loop = loop
        self._commands = {
            name: command for name, command in substitutes.items() if not _is_installed(name)
        }
        self.uid, self.limits = uid, limits
        self._environment = ENVIRONMENT | env
        if "https_proxy" in env and os.path.exists(PACKED_BUNDLE) and not _has_bundle():
            self._environment |= dict.fromkeys(BUNDLE_VARIABLES - env.keys(), PACKED_BUNDLE)
        if "bash" in self._commands and not os.path.isdir(UTF8_LOCALE):
            self._environment["LC_ALL"] = "C"  # the packed glibc of the host has no locales
        self._children: dict[int, Child] = {}
        self._wake_r, wake_w = os.pipe()
        for fd in (self._wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if os.getuid() == 0 and uid != 0:
            # This process accesses files only with the agent's rights. Its real and saved uid stay
            # root, so that the agent can neither signal nor trace it.
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(0, uid, 0)
        self._filter = Filter(denies_hoards=limits.memory_bytes > 0)
        # Where both have the same uid (bubblewrap), being process 1 protects this process from
        # signals, and not being dumpable from /proc/1/fd, /proc/1/mem and ptrace.
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")
        loop.spawn(self._reap_forever())

    def spawn(
        self,
        argv: list[str],
        fds: dict[int, int],
        directory: str,
        env: Mapping[str, str] = {},
        terminal: bool = False,
        account: Account | None = None,
    ) -> Child:
        """Starts `argv` as the leader of a new process group.

        It becomes a subreaper, so that its orphans stay below it in the process tree, where
        `kill_tree` finds them.

        fds: the child's descriptors; those of 0 to 2 that are missing are /dev/null.
        terminal: descriptor 0 is a terminal, which becomes the controlling one.
        account: the user that it runs as; the agent's if None.
        """
        if pid := os.fork():
            child = self._children[pid] = Child(self._loop, pid)
            return child
        argv = [*self._commands.get(argv[0], argv[:1]), *argv[1:]]
        try:
            os.setsid()
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for target, source in {0: null, 1: null, 2: null, **fds}.items():
                os.dup2(source, target)
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals
                signal.signal(number, signal.SIG_DFL)
            for name, value in (RLIMITS | self.limits.rlimits).items():
                resource.setrlimit(getattr(resource, name), (value, value))
            if account:
                env = {**account.variables(), **env}
                _become(account, fds.values())
            else:
                os.setresuid(self.uid, self.uid, self.uid)
            self._filter.apply(self._libc)
            try:
                os.chdir(directory)
            except (OSError, ValueError):  # removed, or an invalid name
                os.chdir(WORK)
            os.execvpe(argv[0], argv, {**self._environment, **env})
        except BaseException as error:
            os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops all processes of the agent during the block, so that nothing changes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGCONT)

    async def _reap_forever(self) -> None:
        while True:
            await self._loop.ready(self._wake_r, READ)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_r, 1 << 12)
            self._reap()

    def _reap(self) -> None:
        """Reaps dead children, and orphans where this is process 1."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                child = self._children.pop(ended[0], None)
                if child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    child.exit_code = code if code >= 0 else 128 - code
                    child.ended.set()

    def kill(self) -> None:
        """Kills all processes except init and this one, and frees their System V IPC objects."""
        self._kill_until_none(lambda: living() - {1, os.getpid()}, at_once=True)
        for kind in ("shm", "sem", "msg"):
            with open(f"/proc/sysvipc/{kind}") as table:
                for row in table.readlines()[1:]:
                    identifier = int(row.split()[1])
                    remove = getattr(self._libc, f"{kind}ctl")
                    remove(identifier, 0, 0, 0) if kind == "sem" else remove(identifier, 0, 0)

    def kill_tree(self, child: Child) -> None:
        """Kills a child, its descendants, and processes that descend from no child any more.

        If they multiply faster than they can be killed, kills all processes of the agent.
        """
        try:
            self._kill_until_none(lambda: self._below_or_stray(child.pid))
        except RuntimeError:
            self.kill()
        if child.exit_code is None:  # last, or its descendants would lose their parent
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def kill_younger(self, child: Child, began: "Birth") -> None:
        """Kills what `child` has started since `began`, but neither the child nor what descends
        from an older process. If that is impossible, kills all processes of the agent."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGSTOP)  # or it could start others meanwhile
            try:
                self._kill_until_none(lambda: self._below_or_stray(child.pid, began))
            except RuntimeError:
                self.kill()
            os.kill(child.pid, signal.SIGCONT)

    def _below_or_stray(self, pid: int, began: "Birth | None" = None) -> set[int]:
        """began: without older processes and what descends from them."""
        parents, births = _parents_and_births()
        spared = self._children.keys() - {pid}
        if began is not None:
            older = {each for each in births if births[each] <= began}
            spared |= older - {pid, 1, os.getpid()}
        return {
            each
            for each in parents.keys() - self._children.keys() - {1, os.getpid()}
            if not spared & {each, *_line(each, parents)}
        }

    def _kill_until_none(self, find: Callable[[], set[int]], at_once: bool = False) -> None:
        deadline = time.monotonic() + DEATH_S
        while others := find():
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {sorted(others)} cannot be killed")
            for pid in [-1] if at_once else others:  # kill(-1) is atomic, so no fork escapes it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.0005)
            self._reap()


def _become(account: Account, pipes: Iterable[int]) -> None:
    for fd in pipes:  # or it could not open /dev/stdout, a link to one
        os.fchown(fd, account.uid, account.gid)
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def _has_bundle() -> bool:
    return any(map(os.path.exists, BUNDLES))


def _is_installed(name: str) -> bool:
    places = ENVIRONMENT["PATH"].split(":")
    return any(os.access(f"{place}/{name}", os.X_OK) for place in places)


def living() -> set[int]:
    """The pids of all processes, including zombies."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


Birth = tuple[int, int]  # when a process started: clock tick since boot, pid


def now() -> Birth:
    """Before that of every process that starts later, and not before that of any earlier one.

    Many processes start within a tick. Pids tell these apart, because the kernel counts them up.
    """
    tick = time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 10**9
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return tick, int(file.read().split()[-1])


def _parents_and_births() -> tuple[dict[int, int], dict[int, Birth]]:
    """The parent of each process that is not a zombie, and when it started."""
    parents, births = {}, {}
    for pid in living():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, *rest = file.read().rpartition(b")")[2].split()
            if state != b"Z":
                parents[pid] = int(parent)
                births[pid] = int(rest[17]), pid
    return parents, births


def _line(pid: int, parents: Mapping[int, int]) -> set[int]:
    """The ancestors of `pid`."""
    line = set()
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.add(pid)
    return line


BUSY_S, IDLE_S = 0.05, 0.5
# Fields of /proc/PID/status. Other memory is not counted: the kernel can drop pages of files, and
# tmpfs has its own limit.
COUNTED = (b"RssAnon:", b"RssShmem:")


async def guard(loop: Loop, limit: int, is_busy: Callable[[], bool]) -> None:
    """Kills the largest process whenever all processes together use more than `limit` bytes, as the
    kernel would. is_busy: whether a command is running; if so, this polls more often."""
    while True:
        sizes = resident()
        while sum(sizes.values()) > limit:
            largest = max(sizes, key=sizes.__getitem__)
            del sizes[largest]
            with contextlib.suppress(ProcessLookupError):
                os.kill(largest, signal.SIGKILL)
        await loop.sleep(BUSY_S if is_busy() else IDLE_S)


def resident() -> dict[int, int]:
    """Bytes of memory that each process of the agent uses, by pid."""
    sizes = {}
    for pid in living() - {1, os.getpid()}:
        # It may end meanwhile, and then uses no memory.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
            sizes[pid] = sum(
                int(line.split()[1]) << 10 for line in file if line.startswith(COUNTED)
            )
    return sizes
