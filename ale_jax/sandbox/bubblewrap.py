"""Sandboxes that use only Linux namespaces (bubblewrap), without a daemon or an image. They see the
host's own /usr and a small /etc of their own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import os
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from ale_jax.sandbox import cgroups, host_ids
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.async_sandbox import COMMAND, AsyncSandbox
from ale_jax.sandbox.blocking import StartsBlocking
from ale_jax.sandbox.booting import (
    AGENT_ID,
    Surroundings,
    boot,
    files_limit,
    log_denial,
    user_id,
)
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.egress.proxy import Record
from ale_jax.sandbox.host_ids import HostId
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.runner.processes import ENVIRONMENT
from ale_jax.sandbox.runner.usage import Usage, read_usage
from ale_jax.sandbox.spec import ETC, ROOT_CAPABILITIES, WORK, SandboxSpec
from ale_jax.sandbox.vitals import Vitals, first_process, read_vitals

HOST_ETC = Path("/etc")
ALTERNATIVES, LIBRARIES = "alternatives", "ld.so.cache"
FILES = {
    "passwd": f"root:x:0:0::/:/bin/sh\nagent:x:{AGENT_ID}:{AGENT_ID}::/work:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{AGENT_ID}:\n",
    "hosts": "127.0.0.1 localhost\n",
}


@contextlib.contextmanager
def etc_arguments(is_writable: bool) -> Iterator[tuple[list[str], list[int]]]:
    """Yields the bwrap arguments that put files into /etc at the start, and the open file
    descriptors that these arguments refer to."""
    how, fds = "--file" if is_writable else "--ro-bind-data", []
    line = [] if is_writable else ["--ro-bind-try", *[str(HOST_ETC / ALTERNATIVES)] * 2]
    try:
        for name, content in _contents().items():
            fds.append(os.memfd_create(name))
            os.write(fds[-1], content)
            os.lseek(fds[-1], 0, os.SEEK_SET)
            line += ["--perms", "0644", how, str(fds[-1]), str(HOST_ETC / name)]
        yield line, fds
    finally:
        for fd in fds:
            os.close(fd)


def etc_archive() -> bytes:
    """All of /etc as a tar archive, from which a sandbox that may change it is reset."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in _contents().items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
        if (HOST_ETC / ALTERNATIVES).is_dir():
            tar.add(HOST_ETC / ALTERNATIVES, ALTERNATIVES)
    return packed.getvalue()


def _contents() -> dict[str, bytes]:
    contents = {name: text.encode() for name, text in FILES.items()}
    with contextlib.suppress(FileNotFoundError):  # a host without the file does not need it
        contents[LIBRARIES] = (HOST_ETC / LIBRARIES).read_bytes()
    return contents


NEEDS = """
for name in python3 tar; do
    command -v "$name" > /dev/null || { echo "no $name in /usr; apt-get install $name"; exit 1; }
done
"""
# Open files of a process where there are no cgroups. Bounds what pipes hold, which nobody counts.
FILES_OF_UNGROUPED = 256
LEAVE_S, EXIT_S = 0.5, 5.0
LAST_WORDS_BYTES = 2000
SYSTEM_DIRS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What the runner needs to make namespaces for the agent's processes. It has them in the sandbox's
# user namespace only, and drops them in every process that it starts.
RUNNER_CAPABILITIES = ("SYS_ADMIN", "SYS_CHROOT", "SETPCAP", "SYS_RESOURCE")
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "ptmx": "pts/ptmx",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}

# Mounted over the host's /tmp, which nothing needs after this point.
PARTS = "/tmp"
MOUNT_PARTS = f"""
limits=$1; shift; number=0
mount -t tmpfs -o size=1m,mode=755 parts {PARTS} || exit 1
while [ "$1" != -- ]; do
    mkdir {PARTS}/$number && mount -t tmpfs -o "$limits,mode=$1" part {PARTS}/$number || exit 1
    number=$((number + 1)); shift
done; shift; exec "$@"
"""

log = logging.getLogger(__name__)

_serial = itertools.count()  # shared by all runtimes of this process, since cgroups are named by it


class Share(NamedTuple):
    """What one sandbox has of the host: the cgroup of its agent, and its user. Each is None where
    this process may not give it."""

    group: cgroups.Cgroup | None
    user: HostId | None

    def free(self) -> None:
        """Errors: OSError, if a process cannot be killed."""
        if self.group:
            self.group.remove()
        if self.user:
            self.user.release()


class Started(NamedTuple):
    """gates: the descriptors of the runner through which processes enter the agent's cgroup.
    connection: the socket to the runner."""

    process: subprocess.Popen
    share: Share
    gates: list[int]
    connection: socket.socket


class BubblewrapMachine:
    """A running bwrap with its cgroups and the socket to its runner."""

    def __init__(
        self,
        process: subprocess.Popen,
        link: Link,
        share: Share,
        spawner: ThreadPoolExecutor,
    ):
        self.link = link
        self._spawner = spawner  # keeps its thread alive, and with it the process
        self._process, self._share = process, share
        self._words = b""
        self._runner_pid: int | None = None
        self._destroying = threading.Lock()

    async def alive(self) -> bool:
        return self._process.poll() is None

    async def destroy(self) -> None:
        self.link.fail("the sandbox is closed")
        await asyncio.to_thread(self._end)

    def vitals(self) -> Vitals | None:
        self._runner_pid = self._runner_pid or first_process(self._process.pid)
        return read_vitals(self._runner_pid) if self._runner_pid else None

    def usage(self) -> Usage:
        group = self._share.group
        return read_usage(group.directories) if group else {}

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace")

    def _end(self) -> None:
        with self._destroying:
            if self._process.stderr.closed:
                return
            try:
                self._end_process()
                self._share.free()
            except (OSError, subprocess.TimeoutExpired) as error:
                log.warning("bwrap %d is left to the reaper: %s", self._process.pid, error)
            os.set_blocking(self._process.stderr.fileno(), False)
            self._words = self._process.stderr.read(LAST_WORDS_BYTES) or b""
            self._process.stderr.close()

    def _end_process(self) -> None:
        # The runner exits when its connection closes. As it is process 1, all other processes in
        # the namespace die with it, and bwrap then reaps it. Killing bwrap instead would leave a
        # zombie for the host's init.
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(EXIT_S)


class BubblewrapRuntime(StartsBlocking):
    """Starts sandboxes as child processes, which do not outlive this process."""

    name = "bubblewrap"

    def __init__(self, spec: SandboxSpec):
        """Errors: SandboxStartError."""
        if reason := probe(spec):
            raise SandboxStartError(f"bubblewrap is not usable: {reason}")
        self._owner = Owner.current()
        # The kernel kills a bwrap when the *thread* that started it ends (PR_SET_PDEATHSIG), so one
        # thread starts all of them and lives as long as this runtime and its machines.
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bubblewrap-spawner")
        try:
            self._hierarchy = cgroups.find()
            self.capabilities = {"memory": "cgroup", "pids": "cgroup", "files": "tmpfs size"}
        except cgroups.CgroupsUnavailable as reason:
            self._hierarchy = None
            self.capabilities = {
                "memory": f"rlimit for each process, and the runner watches their sum ({reason})",
                "pids": "rlimit",
                "files": "tmpfs size",
            }

    async def prepare(self, spec: SandboxSpec) -> None:
        """Only checks the spec, as there is no image to build. Errors: SandboxStartError."""
        self._refuse_unenforceable(spec)

    async def launch(
        self, spec: SandboxSpec, labels: Mapping[str, str], record: Record = log_denial
    ) -> AsyncSandbox:
        """Returns a working sandbox. record: called for each connection that is refused.

        Errors: SandboxStartError.
        """
        self._refuse_unenforceable(spec)
        loop = asyncio.get_running_loop()
        try:
            started = await loop.run_in_executor(self._spawner, self._spawn, spec)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxStartError(f"bubblewrap could not be run: {error}") from error
        link = Link()
        await loop.connect_accepted_socket(lambda: link, started.connection)
        machine = BubblewrapMachine(started.process, link, started.share, self._spawner)
        contents = {ETC: etc_archive()} if ETC in spec.writable else {}
        surroundings = Surroundings(
            uid=user_id(spec),
            has_world=True,
            groups=started.gates,
            contents=contents,
            **self._limits(spec),
        )
        return await boot(machine, spec, surroundings, record)

    def reap(self) -> int:
        """Removes cgroups that dead owners left behind; their processes died with the owner."""
        return self._hierarchy.reap() if self._hierarchy else 0

    def _spawn(self, spec: SandboxSpec) -> Started:
        share = self._take_share(spec)
        ours, theirs = socket.socketpair()
        try:
            with (
                theirs,
                etc_arguments(ETC in spec.writable) as (etc, fds),
                contextlib.ExitStack() as opened,
            ):
                gates = share.group.open_gates() if share.group else []
                opened.callback(cgroups.close_all, gates)
                process = subprocess.Popen(
                    [*_become(share.user), *_mount(spec), *_bwrap(spec, etc), *COMMAND],
                    stdin=theirs,
                    stdout=theirs,
                    stderr=subprocess.PIPE,
                    pass_fds=[*fds, *gates],
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in the terminal must not reach it directly
                )
        except OSError:
            ours.close()
            share.free()
            raise
        return Started(process, share, gates, ours)

    def _take_share(self, spec: SandboxSpec) -> Share:
        user = _claim_user()
        if self._hierarchy is None:
            return Share(None, user)
        try:
            name = f"{cgroups.PREFIX}{self._owner}-{next(_serial)}"
            return Share(self._hierarchy.create(name, spec), user)
        except OSError:
            Share(None, user).free()
            raise

    def _refuse_unenforceable(self, spec: SandboxSpec) -> None:
        if spec.runtime != "runc":
            raise SandboxStartError(
                f"bubblewrap has no runtime {spec.runtime!r}: use Docker for it"
            )
        if spec.cpus and not (self._hierarchy and self._hierarchy.limits_cpus):
            raise SandboxStartError(
                f"bubblewrap cannot limit a sandbox to {spec.cpus} cpus here: run it as root where "
                "there is a cpu controller, use Docker, or leave cpus at 0"
            )

    def _limits(self, spec: SandboxSpec) -> Mapping[str, Any]:
        if self._hierarchy:
            return {}
        memory = spec.memory_mb << 20
        return {
            "limits": {
                "RLIMIT_NPROC": spec.pids,
                "RLIMIT_AS": memory,
                "RLIMIT_NOFILE": FILES_OF_UNGROUPED,
            },
            "memory_bytes": memory,
        }


def probe(spec: SandboxSpec) -> str | None:
    """Why bubblewrap cannot run `spec` now, with the command to fix it; None if it can."""
    if not shutil.which("bwrap"):
        return "bwrap is not installed; type: apt-get install bubblewrap"
    try:
        user = _claim_user()
    except (SandboxStartError, OSError) as error:
        return str(error)
    with contextlib.ExitStack() as held, etc_arguments(ETC in spec.writable) as (etc, fds):
        held.callback(Share(None, user).free)
        line = [*_become(user), *_mount(spec), *_bwrap(spec, etc), "bash", "-c", NEEDS]
        answer = subprocess.run(line, pass_fds=fds, capture_output=True, text=True, timeout=EXIT_S)
    if answer.returncode:
        return f"it does not work on this host: {answer.stderr.strip() or answer.stdout.strip()}"
    return None


def _claim_user() -> HostId | None:
    """Only root can run each sandbox as another user. Errors: SandboxStartError, OSError."""
    return host_ids.claim() if os.getuid() == 0 else None


def _become(user: HostId | None) -> list[str]:
    if user is None:
        return []
    return ["setpriv", f"--reuid={user.number}", f"--regid={user.number}", "--clear-groups"]


def _mount(spec: SandboxSpec) -> list[str]:
    """Command prefix that enters a mount namespace with the sandbox's writable directories below
    PARTS. The tmpfs mounts of bwrap itself cannot limit the number of files."""
    limits = f"{files_limit(spec)},nosuid,nodev"
    modes = [f"{mode:o}" for mode in spec.parts.values()]
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    return [*enter, "sh", "-c", MOUNT_PARTS, "sh", limits, *modes, "--"]


def _bwrap(spec: SandboxSpec, etc: list[str]) -> list[str]:
    """etc: the arguments that put files into /etc."""
    line = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    line += ["--as-pid-1", "--clearenv", "--setenv", "PATH", ENVIRONMENT["PATH"]]
    kept = (*RUNNER_CAPABILITIES, *(ROOT_CAPABILITIES if spec.user == "root" else ()))
    line += ["--cap-drop", "ALL", *(word for name in kept for word in ("--cap-add", f"CAP_{name}"))]
    user = str(user_id(spec))
    line += ["--uid", user, "--gid", user, "--hostname", "sandbox"]
    line += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", *_devices()]
    for name in SYSTEM_DIRS:
        if Path("/", name).is_symlink():
            line += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        else:
            line += ["--ro-bind-try", f"/{name}", f"/{name}"]
    line += ["--perms", "0755", "--dir", ETC]
    for number, path in enumerate(spec.parts):
        line += ["--bind", f"{PARTS}/{number}", path]
    return [*line, *etc, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK]


def _devices() -> list[str]:
    # With bwrap's own --dev, the runner would get a second user namespace, in which it has no
    # power over the first, and could not make pid namespaces more than once.
    line = ["--perms", "0755", "--tmpfs", "/dev", "--dir", "/dev/pts", "--dir", "/dev/shm"]
    for name in DEVICES:
        line += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in DEVICE_LINKS.items():
        line += ["--symlink", target, f"/dev/{name}"]
    return line
