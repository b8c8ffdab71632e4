"""The agent's user and processes inside the sandbox."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping

from . import kernel
from .files import RUNNER_ID, WORK, Account, is_mapped
from .loop import READ, Event, Loop
from .rights import Rights
from .world import World

DEATH_S = 5.0
STOPPED_STATES = (b"T", b"t", b"Z", b"X", b"")  # the last of a process that is gone
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


class Agent:
    """The agent's user inside the sandbox, and its processes.

    rights: of its processes.
    world: where its processes live; None if that is the runner's own namespaces.
    env: further environment variables of its processes.
    substitutes: commands for programs that the image may lack.
    pids: maximum number of its processes and threads at a time.

    network_is_new: called when this process has moved to another network.
    """

    def __init__(
        self,
        loop: Loop,
        rights: Rights,
        world: World | None,
        env: dict[str, str],
        substitutes: dict[str, list[str]],
        pids: int,
    ):
        self.rights = rights
        self._loop, self._world, self.pids = loop, world, pids
        self._own = {1, os.getpid()}  # a child has another number for itself
        self._commands = {
            name: command for name, command in substitutes.items() if not _is_installed(name)
        }
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
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the kernel drops for a process 1
        if os.getuid() == 0 and is_mapped(RUNNER_ID):  # otherwise there is one user only
            rights.separate()
        # Where both have the same uid (bubblewrap), not being dumpable protects this process and
        # the agent's processes, until they execute a program, from ptrace and /proc.
        kernel.call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
        loop.spawn(self._reap_forever())
        self.network_is_new: Callable[[], None] = lambda: None
        self._is_inhabited = False  # something was born into the present world
        if world:
            world.make()
            world.wait()

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

        Errors: OSError, such as that of a fork without room for it (`pids`); ValueError for an
        empty `argv`.
        """
        if not argv:
            raise ValueError("argv must have at least one word, the program")
        self._reap()
        self._require_room()
        if self._world and not self._world.init:
            self._make_world()
            self._world.wait()
        self._is_inhabited = True
        with self.rights.expendable():
            pid = kernel.fork(lambda: self._be_child(argv, fds, directory, env, terminal, account))
        child = self._children[pid] = Child(self._loop, pid)
        return child

    @contextlib.contextmanager
    def unlimited(self) -> Iterator[None]:
        """For programs of the runner's own, which must not depend on what the agent leaves."""
        limit, self.pids = self.pids, sys.maxsize
        try:
            yield
        finally:
            self.pids = limit

    def _require_room(self) -> None:
        """Raises a refused fork's error if `pids` processes and threads live. The kernel refuses
        forks to the agent's own processes only: what this process starts is born outside of their
        group, which any number may enter."""
        if kernel.threads(self.others()) >= self.pids:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _be_child(
        self,
        argv: list[str],
        fds: dict[int, int],
        directory: str,
        env: Mapping[str, str],
        terminal: bool,
        account: Account | None,
    ) -> None:
        """Makes this process, a new child of the runner, what `spawn` describes. Returns only if
        that fails, after it has said so on standard error."""
        try:
            argv = [*self._commands.get(argv[0], argv[:1]), *argv[1:]]
            os.setsid()
            with contextlib.suppress(OSError):  # gVisor may have none: orphans count as strays then
                kernel.call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            _take_descriptors(fds)
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals
                signal.signal(number, signal.SIG_DFL)
            if account:
                env = {**account.variables(), **env}
            self.rights.take(account, fds)
            try:
                os.chdir(directory)
            except (OSError, ValueError):  # removed, or an invalid name
                os.chdir(WORK)
            os.execvpe(argv[0], argv, {**self._environment, **env})
        except BaseException as error:
            os.write(2, f"cannot start {argv[0]}: {error}\n".encode("utf-8", "replace"))

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
            self._reap()

    def _reap(self) -> None:
        """Reaps dead children, and orphans where this is process 1."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 1 << 12)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self._world and ended[0] == self._world.init:
                    self._world.init = 0
                child = self._children.pop(ended[0], None)
                if child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    child.exit_code = code if code >= 0 else 128 - code
                    child.ended.set()

    def others(self) -> set[int]:
        """The pids of the agent's processes."""
        return kernel.living() - self._own - {self._world.init if self._world else 1}

    def kill(self) -> None:
        """Kills all processes of the agent, and frees their System V IPC objects."""
        if self._world:
            self._reap()
            if self._is_inhabited or not self._world.is_untouched():
                self._renew_world()
        else:
            self._kill_until_none(self.others, at_once=True)
            if not self.rights.denies_hoards:
                with self.rights.as_agent():
                    _free_ipc_objects()

    def _renew_world(self) -> None:
        """Kills process 1 of the world, which ends when all others have ended and are reaped. A new
        world is made meanwhile, in which none of them is."""
        deadline = time.monotonic() + DEATH_S
        old = self._world.init
        if old:
            os.kill(old, signal.SIGKILL)
        self._make_world()
        self._reap()
        while old in kernel.living():
            left = deadline - time.monotonic()
            if left < 0:
                raise RuntimeError(f"processes {sorted(self.others())} cannot be killed")
            select.select([self._wake_r], [], [], left)
            self._reap()
        self._world.wait()

    def _make_world(self) -> None:
        self._is_inhabited = False
        if self._world.make():
            self.network_is_new()

    def kill_tree(self, child: Child) -> None:
        """Kills a child, its descendants, and processes that descend from no child any more.

        If they multiply faster than they can be killed, kills all processes of the agent.
        """
        try:
            if child.exit_code is None:
                _stop(child.pid)  # or it could start another one at the end
            self._kill_until_none(lambda: self._below_or_stray(child.pid))
        except RuntimeError:
            self.kill()
        if child.exit_code is None:  # last, or its descendants would lose their parent
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def kill_younger(self, child: Child, began: kernel.Birth) -> None:
        """Kills what `child` has started since `began`, but neither the child nor what descends
        from an older process. If that is impossible, kills all processes of the agent."""
        try:
            _stop(child.pid)  # or it could start others meanwhile
            self._kill_until_none(lambda: self._below_or_stray(child.pid, began))
        except RuntimeError:
            self.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGCONT)

    def _below_or_stray(self, pid: int, began: kernel.Birth | None = None) -> set[int]:
        """began: without older processes and what descends from them."""
        parents, births = kernel.parents_and_births()
        others = self.others()
        spared = self._children.keys() - {pid}
        if began is not None:
            older = {each for each in births if births[each] <= began}
            spared |= older & others - {pid}
        return {
            each
            for each in parents.keys() & others - self._children.keys()
            if not spared & {each, *kernel.ancestors(each, parents)}
        }

    def _kill_until_none(self, find: Callable[[], set[int]], at_once: bool = False) -> None:
        deadline = time.monotonic() + DEATH_S
        while found := find():
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {sorted(found)} cannot be killed")
            for pid in [-1] if at_once else found:  # kill(-1) is atomic, so no fork escapes it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.0005)
            self._reap()


def _take_descriptors(fds: Mapping[int, int]) -> None:
    """See `Agent.spawn`. Their sources are moved away first: in a runner that has many open, one of
    them may have the number of another's target, which would replace it, or its own, in which case
    it would stay closed on exec."""
    null = os.open(os.devnull, os.O_RDWR)
    wanted = {0: null, 1: null, 2: null, **fds}
    free = max(wanted) + 1
    moved = {to: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for to, fd in wanted.items()}
    for target, source in moved.items():
        os.dup2(source, target)


def _stop(pid: int) -> None:
    """Stops a process, if there is one, and returns when it has stopped. RuntimeError if it cannot
    be stopped.

    A fork that the signal meets is finished first, unlike one that SIGKILL meets, so for a moment
    the new process may not be listed yet.
    """
    deadline = time.monotonic() + DEATH_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        while kernel.state(pid) not in STOPPED_STATES:
            if time.monotonic() > deadline:
                raise RuntimeError(f"process {pid} cannot be stopped")
            time.sleep(0.0005)


def _free_ipc_objects() -> None:
    for kind in ("shm", "sem", "msg"):
        for row in kernel.read(f"sysvipc/{kind}").splitlines()[1:]:
            words = (0, 0, 0) if kind == "sem" else (0, 0)
            kernel.call(f"{kind}ctl", int(row.split()[1]), *words)


def _has_bundle() -> bool:
    return any(map(os.path.exists, BUNDLES))


def _is_installed(name: str) -> bool:
    places = ENVIRONMENT["PATH"].split(":")
    return any(os.access(f"{place}/{name}", os.X_OK) for place in places)
