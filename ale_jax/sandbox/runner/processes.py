"""Who the agent is inside the sandbox, and the life of its processes."""

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator

from .files import WORK
from .seccomp import Filter

DEATH_S = 5.0
RLIMITS = {"RLIMIT_CORE": 0, "RLIMIT_MSGQUEUE": 0}  # a POSIX message queue would outlive a reset
PR_SET_DUMPABLE = 4

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


class Agent:
    """Who the agent is inside, and its processes. uid, gid: its ids; this process works as them."""

    def __init__(self, uid: int, gid: int, rlimits: dict[str, int]):
        self.uid, self.rlimits = uid, rlimits
        self.exits: dict[int, int] = {}
        if os.getuid() == 0:
            # Files are touched with the agent's rights, never with more. That the real and saved
            # ids stay root's keeps the agent from signalling or tracing this process.
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(0, uid, 0)
        self._filter = Filter()
        # Where the ids are the same (bubblewrap), being process 1 guards against signals, and this
        # closes /proc/1/fd, /proc/1/mem and ptrace.
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")

    def spawn(self, argv: list[str], fds: dict[int, int], directory: str) -> int:
        """Starts `argv` as leader of a new process group; of 0 to 2, what `fds` lacks is null."""
        if pid := os.fork():
            return pid
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for target, source in {0: null, 1: null, 2: null, **fds}.items():
                os.dup2(source, target)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            for name, value in (RLIMITS | self.rlimits).items():
                resource.setrlimit(getattr(resource, name), (value, value))
            os.setresuid(self.uid, self.uid, self.uid)
            self._filter.apply(self._libc)
            try:
                os.chdir(directory)
            except (OSError, ValueError):  # the agent removed it, or made up its name
                os.chdir(WORK)
            os.execvpe(argv[0], argv, ENVIRONMENT)
        except BaseException as error:
            os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops every process of the agent's meanwhile: nothing changes, and nothing interferes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGCONT)

    def reap(self) -> None:
        """Collects dead children; orphans too, where this is process 1."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                self.exits[ended[0]] = code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Kills every process but init and this one, and frees what of theirs would stay."""
        self._kill_processes()
        for kind in ("shm", "sem", "msg"):
            with open(f"/proc/sysvipc/{kind}") as table:
                for row in table.readlines()[1:]:
                    identifier = int(row.split()[1])
                    remove = getattr(self._libc, f"{kind}ctl")
                    remove(identifier, 0, 0, 0) if kind == "sem" else remove(identifier, 0, 0)

    def _kill_processes(self) -> None:
        # kill(-1) is atomic: no fork escapes it.
        deadline = time.monotonic() + DEATH_S
        while others := living() - {1, os.getpid()}:
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {sorted(others)} do not die")
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            time.sleep(0.0005)
            self.reap()


def living() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}
