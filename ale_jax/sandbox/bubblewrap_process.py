"""One bwrap: the command line that says what its sandbox sees (namespaces, mounts, devices, and the
small /etc where it sees the host's own /usr), and the running process, with what belongs to it on
the host."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ale_jax.sandbox import agent_program, cgroups, toolkit
from ale_jax.sandbox.booting import AGENT_ID, ROOT_ID, files_limit, user_id
from ale_jax.sandbox.disk.roots import HeldRoot, Root
from ale_jax.sandbox.disk.store import Reference
from ale_jax.sandbox.host_ids import HostId
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.runner.processes import ENVIRONMENT
from ale_jax.sandbox.runner.usage import Usage, read_usage
from ale_jax.sandbox.runner.world import DEVICES
from ale_jax.sandbox.spec import DATASETS, ETC, ROOT_CAPABILITIES, WORK, SandboxSpec
from ale_jax.sandbox.vitals import Vitals, first_process, read_vitals

HOST_ETC = Path("/etc")
# Where the programs of this /usr look for certificates: on Debian, Fedora and Arch. None of these
# directories holds private keys.
CERTIFICATES = (
    *("ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/tls/cert.pem"),
    *("pki/ca-trust/extracted", "ca-certificates/extracted"),
)
ALTERNATIVES, LIBRARIES = "alternatives", "ld.so.cache"
FILES = {
    "passwd": f"root:x:0:0::/:/bin/sh\nagent:x:{AGENT_ID}:{AGENT_ID}::/work:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{AGENT_ID}:\n",
    "hosts": "127.0.0.1 localhost\n",
}
SYSTEM_DIRS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What the runner needs to make namespaces for the agent's processes. It has them in the sandbox's
# user namespace only, and drops them in every process that it starts.
RUNNER_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_CHROOT", "SETPCAP", "SYS_RESOURCE")
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


def line_in_memory(
    spec: SandboxSpec, etc: list[str], user: HostId | None, shown: Mapping[str, str]
) -> list[str]:
    """Returns the line that starts a sandbox with its files in memory, without the program in it.

    etc: the arguments that put files into /etc. user: whose processes they are on the host. shown:
    the host's path for each directory that the sandbox sees read-only.
    """
    kept = ROOT_CAPABILITIES if spec.user == "root" else ()
    line = _namespaces(["--unshare-user"], user_id(spec), kept)
    line += ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_DIRS:
        if Path("/", name).is_symlink():
            line += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        else:
            line += ["--ro-bind-try", f"/{name}", f"/{name}"]
    line += ["--perms", "0755", "--dir", ETC]
    for number, path in enumerate(spec.parts):
        line += ["--bind", f"{PARTS}/{number}", path]
    if spec.ale_agent:
        line += ["--ro-bind", str(agent_program.ensure()), agent_program.HOME]
    if ETC not in spec.writable:
        for name in certificates(spec):
            line += ["--ro-bind-try", *[str(HOST_ETC / name)] * 2]
    line += [*etc, *_shown(shown), *_devices(), "--remount-ro", "/", "--chdir", WORK]
    return [*(_as_user(user.number) if user else ()), *_mounting(spec), *line]


def line_on_disk(spec: SandboxSpec, root: Root, tools: Path, shown: Mapping[str, str]) -> list[str]:
    """As `line_in_memory`, for a root on disk. tools: the files of the toolkit."""
    # There are several users here, so the runner can be another one than the agent.
    kept = ROOT_CAPABILITIES if spec.user == "root" else ("SETUID", "SETGID")
    line = _namespaces(["--userns", str(root.users.namespace)], ROOT_ID, kept)
    for name, value in toolkit.environment().items():
        line += ["--setenv", name, value]
    line += ["--bind", str(root.path), "/", "--ro-bind", str(tools), toolkit.HOME]
    if shown:  # below a mount, which user root can neither move nor replace by a link
        line += ["--perms", "0755", "--tmpfs", DATASETS, *_shown(shown), "--remount-ro", DATASETS]
    line += [*_devices(), "--chdir", WORK]
    return [*_as_user(root.users.first), *line]


def _shown(directories: Mapping[str, str]) -> list[str]:
    return [word for inside, path in directories.items() for word in ("--ro-bind", path, inside)]


def _as_user(number: int) -> list[str]:
    return ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]


def _mounting(spec: SandboxSpec) -> list[str]:
    """Command prefix that enters a mount namespace with the sandbox's writable directories below
    PARTS. The tmpfs mounts of bwrap itself cannot limit the number of files."""
    limits = f"{files_limit(spec)},nosuid,nodev"
    modes = [f"{mode:o}" for mode in spec.parts.values()]
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    return [*enter, "sh", "-c", MOUNT_PARTS, "sh", limits, *modes, "--"]


def _namespaces(users: list[str], user: int, capabilities: Iterable[str]) -> list[str]:
    """users: the arguments for the user namespace. user: the runner's in it."""
    line = ["bwrap", *users, "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    line += [f"--unshare-{kind}" for kind in ("cgroup-try", "ipc", "net", "pid", "uts")]
    line += ["--setenv", "PATH", ENVIRONMENT["PATH"], "--hostname", "sandbox", "--cap-drop", "ALL"]
    for name in (*RUNNER_CAPABILITIES, *capabilities):
        line += ["--cap-add", f"CAP_{name}"]
    return [*line, "--uid", str(user), "--gid", str(user)]


def _devices() -> list[str]:
    # With bwrap's own --dev, the runner would get a second user namespace, in which it has no
    # power over the first, and could not make pid namespaces more than once.
    line = ["--proc", "/proc", "--perms", "0755", "--tmpfs", "/dev"]
    line += ["--dir", "/dev/pts", "--dir", "/dev/shm"]
    for name in DEVICES:
        line += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in DEVICE_LINKS.items():
        line += ["--symlink", target, f"/dev/{name}"]
    return [*line, "--remount-ro", "/dev"]


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


def etc_archive(spec: SandboxSpec) -> bytes:
    """All of /etc as a tar archive, from which a sandbox that may change it is reset."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in _contents().items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
        for name in (ALTERNATIVES, *certificates(spec)):
            if (HOST_ETC / name).exists():
                tar.add(HOST_ETC / name, name)
    return packed.getvalue()


def certificates(spec: SandboxSpec) -> tuple[str, ...]:
    """What a sandbox with a network needs of the host's /etc."""
    return CERTIFICATES if spec.network.mode != "none" else ()


def _contents() -> dict[str, bytes]:
    contents = {name: text.encode() for name, text in FILES.items()}
    with contextlib.suppress(FileNotFoundError):  # a host without the file does not need it
        contents[LIBRARIES] = (HOST_ETC / LIBRARIES).read_bytes()
    return contents


LEAVE_S, EXIT_S = 0.5, 5.0
LAST_WORDS_BYTES = 2000

log = logging.getLogger(__name__)


class Share(NamedTuple):
    """What one sandbox has of the host: the cgroup of its agent, its user, and its root on disk.
    Each is None where it has none, or where this process may not give it."""

    group: cgroups.Cgroup | None = None
    user: HostId | None = None
    root: HeldRoot | None = None

    def free(self) -> Share:
        """Frees every part, also if another cannot be freed, which is logged. Returns what may be
        freed later: a cgroup in which a process has not ended yet."""
        left = Share()
        if self.group:
            try:
                self.group.remove()
            except OSError as error:
                left = Share(group=self.group)
                words = "is left to another attempt, or to the reaper when this process has ended"
                log.warning("cgroup %s %s: %s", self.group.directories[0].name, words, error)
        for name, part in (("user id", self.user), ("root on disk", self.root)):
            if part:
                try:
                    part.release()
                except Exception as error:  # of any kind: the other parts do not depend on it
                    log.warning("a %s is left until this process ends: %s", name, error)
        return left


class Started(NamedTuple):
    """gates: the descriptors of the runner through which processes enter the agent's cgroup.
    connection: the socket to the runner."""

    process: subprocess.Popen
    share: Share
    gates: list[int]
    connection: socket.socket


def start(share: Share, line: list[str], fds: list[int]) -> Started:
    """Runs the command line of a sandbox. If that fails, frees its share.

    Errors: OSError; ValueError for a command line with a NUL.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs, contextlib.ExitStack() as opened:
            gates = share.group.open_gates() if share.group else []
            opened.callback(cgroups.close_all, gates)
            process = subprocess.Popen(
                line,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                pass_fds=[*fds, *gates],
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal must not reach it directly
            )
    except BaseException:
        ours.close()
        share.free()
        raise
    return Started(process, share, gates, ours)


class BubblewrapMachine:
    """A running bwrap with its share of the host and the socket to its runner."""

    def __init__(self, started: Started, link: Link, spawner: ThreadPoolExecutor):
        self.link = link
        self._spawner = spawner  # keeps its thread alive, and with it the process
        self._process, self._share = started.process, started.share
        self._left = started.share  # what is still to be freed
        self._words = b""
        self._runner_pid: int | None = None
        self._destroying = threading.Lock()

    async def alive(self) -> bool:
        return self._process.poll() is None

    async def destroy(self) -> None:
        """Called again, it frees what could not be freed before."""
        self.link.fail("the sandbox is closed")
        await asyncio.to_thread(self._end)

    def vitals(self) -> Vitals | None:
        self._runner_pid = self._runner_pid or first_process(self._process.pid)
        return read_vitals(self._runner_pid) if self._runner_pid else None

    def usage(self) -> Usage:
        group, root = self._share.group, self._share.root
        used = read_usage(group.directories) if group else {}
        return used | (root.usage() if root else {})

    async def freeze(self) -> Reference:
        return await asyncio.to_thread(self._share.root.freeze)

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace")

    def _end(self) -> None:
        with self._destroying:
            try:
                self._end_process()
            except (OSError, subprocess.TimeoutExpired) as error:
                # Its processes may still use what it has.
                words = "does not end, and keeps its share until another attempt"
                log.warning("bwrap %d %s: %s", self._process.pid, words, error)
            else:
                self._left = self._left.free()
            self._take_last_words()

    def _take_last_words(self) -> None:
        stderr = self._process.stderr
        if stderr is not None and not stderr.closed:
            os.set_blocking(stderr.fileno(), False)
            self._words = stderr.read(LAST_WORDS_BYTES) or b""
            stderr.close()

    def _end_process(self) -> None:
        # The runner exits when its connection closes. As it is process 1, all other processes in
        # the namespace die with it, and bwrap then reaps it. Killing bwrap instead would leave a
        # zombie for the host's init.
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(EXIT_S)
