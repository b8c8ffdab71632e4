"""The namespaces in which all processes of the agent live, below those of the runner.

Inside, the runner has no pid. No signal, limit, priority or file in /proc can name it, neither for
the agent nor for root of the sandbox. A reset remakes them, and checks that all is as it was.
"""

import fcntl
import os
import signal
import socket
import struct

from . import kernel
from .rights import drop_capabilities

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
PLAIN = MS_NOSUID | MS_NODEV | MS_NOEXEC
READY = b"ready"
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")  # the host's, below /dev
MAX_TERMINALS = 64  # the number of all terminals on the host is limited, too


class World:
    """A pid, an IPC, a mount and a network namespace, which this process makes and remakes.

    This process joins them, so that it sees the agent's files and ports where the agent does, but
    for the pid namespace: its children are born into that, but it stays outside.

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
        self._unused = _counters()
        for name in DEVICES:
            # Or everybody could set the times of the host's files. Data is written all the same.
            flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID
            _mount(None, f"/dev/{name}", None, flags)

    def make(self) -> bool:
        """Makes new namespaces, which children are born into from now on. Call `wait` before the
        first one. Returns whether the network is new, too. Errors: OSError."""
        # An unused one leaves nothing, and another would cost half a millisecond.
        network = 0 if _counters() == self._unused else CLONE_NEWNET
        # The kernel makes a pid namespace only for a process whose children live in its own.
        for kind, namespace in self._outside.items():
            kernel.call("setns", namespace, kind)
        kernel.call("unshare", CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | network)
        if network:
            _raise_loopback()
        ready_r, ready_w = os.pipe()
        self.init = kernel.fork(lambda: self._be_init(ready_w))
        os.close(ready_w)
        self._ready = ready_r
        return bool(network)

    def is_untouched(self) -> bool:
        """Whether process 1 lives and nothing has used the network. Then it is as it was made,
        unless something was born into it."""
        return bool(self.init) and _counters() == self._unused

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


COUNTERS = ("dev", "snmp", "snmp6")
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
INTERFACE = struct.Struct("16sH22x")  # struct ifreq: name, flags


def _counters() -> list[bytes]:
    """What the kernel has counted in this network: packets, and what could not be sent."""
    return [kernel.read(f"self/net/{name}") for name in COUNTERS]


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, INTERFACE.pack(b"lo", IFF_UP))
