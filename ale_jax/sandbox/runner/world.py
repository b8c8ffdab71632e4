"""The namespaces in which all processes of the agent live, below those of the runner.

Inside, the runner has no pid. No signal, limit, priority or file in /proc can name it, neither for
the agent nor for root of the sandbox. A reset remakes them, and checks that all is as it was.
"""

import os
import signal

from . import kernel
from .rights import drop_capabilities

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
PLAIN = MS_NOSUID | MS_NODEV | MS_NOEXEC
READY = b"ready"
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")  # the host's, below /dev
MAX_TERMINALS = 64  # the number of all terminals on the host is limited, too


# What it mounts, new in each world.
MOUNTS = frozenset({"/proc", "/proc/sys", "/dev/pts", "/dev/shm"})


class World:
    """A pid, an IPC and a mount namespace, which this process makes and remakes.

    This process joins the mount namespace, so that it sees the agent's files where the agent does,
    and the IPC namespace. Its children are born into the pid namespace, but it stays outside.

    init: the pid of process 1 of the namespace, as seen from here; 0 if there is none. When it
        ends, the kernel kills every other process in the namespace.
    """

    def __init__(self, shm: str):
        """shm: options of the tmpfs on /dev/shm."""
        self.init = 0
        self._shm = shm
        self._outside = {
            kind: os.open(f"self/ns/{name}", os.O_RDONLY, dir_fd=kernel.proc())
            for kind, name in ((CLONE_NEWNS, "mnt"), (CLONE_NEWPID, "pid"))
        }
        # In a user namespace of its own, the agent would have every capability. Only this process
        # may change the number back.
        sysctl = os.open("sys/user/max_user_namespaces", os.O_WRONLY, dir_fd=kernel.proc())
        os.write(sysctl, b"0")
        os.close(sysctl)
        for name in DEVICES:
            # Or everybody could set the times of the host's files. Data is written all the same.
            flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID
            _mount(None, f"/dev/{name}", None, flags)

    def make(self) -> None:
        """Makes new namespaces, which children are born into from now on. Call `wait` before the
        first one. Errors: OSError."""
        # The kernel makes a pid namespace only for a process whose children live in its own.
        for kind, namespace in self._outside.items():
            kernel.call("setns", namespace, kind)
        kernel.call("unshare", CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID)
        ready_r, ready_w = os.pipe()
        self.init = kernel.fork(lambda: self._be_init(ready_w))
        os.close(ready_w)
        self._ready = ready_r

    def wait(self) -> None:
        """Waits until everything is mounted. Errors: OSError."""
        with open(self._ready, "rb") as ready:
            answer = ready.read()
        if answer != READY:
            raise OSError(f"no namespaces for the agent: {answer.decode('utf-8', 'replace')}")

    def _be_init(self, ready: int) -> None:
        """Mounts what depends on the namespaces, then only reaps orphans, which the kernel does
        where SIGCHLD is ignored."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            os.closerange(0, ready)
            os.closerange(ready + 1, os.sysconf("SC_OPEN_MAX"))
            self._mount()
            drop_capabilities(())
            os.write(ready, READY)
            os.close(ready)
            while True:
                signal.pause()
        except BaseException as error:
            os.write(ready, str(error).encode())

    def _mount(self) -> None:
        _mount("proc", "/proc", "proc", PLAIN)
        # Otherwise the owner of a namespace may write there.
        _mount("/proc/sys", "/proc/sys", None, MS_BIND)
        _mount(None, "/proc/sys", None, MS_REMOUNT | MS_BIND | MS_RDONLY | PLAIN)
        terminals = f"newinstance,ptmxmode=0666,mode=0620,max={MAX_TERMINALS}"
        _mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, terminals)
        _mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,{self._shm}")


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str = ""
) -> None:
    words = [word and word.encode() for word in (source, target, kind)]
    kernel.call("mount", *words, flags, options.encode())
