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
from typing import Any

from ale_jax.sandbox import cgroups
from ale_jax.sandbox.api import ImageMissing, SandboxStartError
from ale_jax.sandbox.async_sandbox import COMMAND, AsyncSandbox
from ale_jax.sandbox.blocking import StartsBlocking
from ale_jax.sandbox.booting import AGENT_ID, NO_LIMITS, boot, log_denial, user_id
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.egress.proxy import Record
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.runner.processes import ENVIRONMENT
from ale_jax.sandbox.runner.usage import Usage, read_usage
from ale_jax.sandbox.spec import ETC, ROOT_CAPABILITIES, WORK, SandboxSpec

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
        for name in (ALTERNATIVES, *_certificates(spec)):
            if (HOST_ETC / name).exists():
                tar.add(HOST_ETC / name, name)
    return packed.getvalue()


def _certificates(spec: SandboxSpec) -> tuple[str, ...]:
    """What a sandbox with a network needs of the host's /etc."""
    return CERTIFICATES if spec.network.mode != "none" else ()


def _contents() -> dict[str, bytes]:
    contents = {name: text.encode() for name, text in FILES.items()}
    with contextlib.suppress(FileNotFoundError):  # a host without the file does not need it
        contents[LIBRARIES] = (HOST_ETC / LIBRARIES).read_bytes()
    return contents


NOBODY_ID = 65534
NEEDS = """
for name in python3 tar; do
    command -v "$name" > /dev/null || { echo "no $name in /usr; apt-get install $name"; exit 1; }
done
"""
LEAVE_S, EXIT_S = 0.5, 5.0
LAST_WORDS_BYTES = 2000
SYSTEM_DIRS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Enters the sandbox's cgroups, then executes the rest of the command line, so that nothing ever
# runs outside of them.
ENTER_GROUPS = """
while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"
"""

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


class BubblewrapMachine:
    """A running bwrap with its cgroups and the socket to its runner."""

    def __init__(
        self,
        process: subprocess.Popen,
        link: Link,
        group: cgroups.Cgroup | None,
        spawner: ThreadPoolExecutor,
    ):
        self.link = link
        self._spawner = spawner  # keeps its thread alive, and with it the process
        self._process = process
        self._group = group
        self._words = b""
        self._destroying = threading.Lock()

    async def alive(self) -> bool:
        return self._process.poll() is None

    async def destroy(self) -> None:
        self.link.fail("the sandbox is closed")
        await asyncio.to_thread(self._end)

    def usage(self) -> Usage:
        return read_usage(self._group.directories) if self._group else {}

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace")

    def _end(self) -> None:
        with self._destroying:
            if self._process.stderr.closed:
                return
            try:
                self._end_process()
                if self._group:
                    self._group.remove()
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
            process, group, ours = await loop.run_in_executor(self._spawner, self._spawn, spec)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxStartError(f"bubblewrap could not be run: {error}") from error
        link = Link()
        await loop.connect_accepted_socket(lambda: link, ours)
        machine = BubblewrapMachine(process, link, group, self._spawner)
        contents = {ETC: etc_archive(spec)} if ETC in spec.writable else {}
        return await boot(machine, spec, self._limits(spec), contents, {}, record)

    def reap(self) -> int:
        """Removes cgroups that dead owners left behind; their processes died with the owner."""
        return self._hierarchy.reap() if self._hierarchy else 0

    def _spawn(
        self, spec: SandboxSpec
    ) -> tuple[subprocess.Popen, cgroups.Cgroup | None, socket.socket]:
        group = None
        if self._hierarchy:
            name = f"{cgroups.PREFIX}{self._owner}-{next(_serial)}"
            group = self._hierarchy.create(name, spec)
        ours, theirs = socket.socketpair()
        try:
            with theirs, etc_arguments(ETC in spec.writable) as (etc, fds):
                process = subprocess.Popen(
                    [*_enter(group), *_mount(spec), *_bwrap(spec, etc), *COMMAND],
                    stdin=theirs,
                    stdout=theirs,
                    stderr=subprocess.PIPE,
                    pass_fds=fds,
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in the terminal must not reach it directly
                )
        except OSError:
            ours.close()
            if group:
                group.remove()
            raise
        return process, group, ours

    def _refuse_unenforceable(self, spec: SandboxSpec) -> None:
        if reason := _image_trouble(spec):
            raise ImageMissing(reason)
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
            return NO_LIMITS
        memory = spec.memory_mb << 20
        rlimits = {"RLIMIT_NPROC": spec.pids, "RLIMIT_AS": memory}
        return {"rlimits": rlimits, "memory_bytes": memory}


def _image_trouble(spec: SandboxSpec) -> str | None:
    if spec.image == SandboxSpec.image:
        return None
    return (
        f"bubblewrap has no image {spec.image!r}, only the host's own /usr, which stands for "
        f"{SandboxSpec.image!r}: use Docker (--runtime=docker) for other images"
    )


def probe(spec: SandboxSpec) -> str | None:
    """Why bubblewrap cannot run `spec` now, with the command to fix it; None if it can."""
    if reason := _image_trouble(spec):
        return reason
    if not shutil.which("bwrap"):
        return "bwrap is not installed; type: apt-get install bubblewrap"
    with etc_arguments(ETC in spec.writable) as (etc, fds):
        line = [*_enter(None), *_mount(spec), *_bwrap(spec, etc), "bash", "-c", NEEDS]
        answer = subprocess.run(line, pass_fds=fds, capture_output=True, text=True, timeout=EXIT_S)
    if answer.returncode:
        return f"it does not work on this host: {answer.stderr.strip() or answer.stdout.strip()}"
    return None


def _enter(group: cgroups.Cgroup | None) -> list[str]:
    directories = [str(directory) for directory in group.directories] if group else []
    line = ["sh", "-c", ENTER_GROUPS, "sh", *directories, "--"]
    if os.getuid() == 0:  # as the host's root it would own every file in its namespace
        line += ["setpriv", f"--reuid={NOBODY_ID}", f"--regid={NOBODY_ID}", "--clear-groups"]
    return line


def _mount(spec: SandboxSpec) -> list[str]:
    """Command prefix that enters a mount namespace with the sandbox's writable directories below
    PARTS. The tmpfs mounts of bwrap itself cannot limit the number of files."""
    limits = f"size={spec.files_mb}m,nr_inodes={spec.max_files},nosuid,nodev"
    modes = [f"{mode:o}" for mode in spec.parts.values()]
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    return [*enter, "sh", "-c", MOUNT_PARTS, "sh", limits, *modes, "--"]


def _bwrap(spec: SandboxSpec, etc: list[str]) -> list[str]:
    """etc: the arguments that put files into /etc."""
    line = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    line += ["--new-session", "--as-pid-1", "--clearenv"]
    line += ["--cap-drop", "ALL", "--setenv", "PATH", ENVIRONMENT["PATH"]]
    if spec.user == "root":
        line += [word for name in ROOT_CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    user = str(user_id(spec))
    line += ["--uid", user, "--gid", user, "--hostname", "sandbox"]
    line += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in SYSTEM_DIRS:
        if Path("/", name).is_symlink():
            line += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        else:
            line += ["--ro-bind-try", f"/{name}", f"/{name}"]
    line += ["--perms", "0755", "--dir", ETC]
    for number, path in enumerate(spec.parts):
        line += ["--bind", f"{PARTS}/{number}", path]
    if ETC not in spec.writable:
        for name in _certificates(spec):
            line += ["--ro-bind-try", *[str(HOST_ETC / name)] * 2]
    return [*line, *etc, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK]
