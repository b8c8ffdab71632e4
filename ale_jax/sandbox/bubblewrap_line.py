"""What a sandbox of bubblewrap sees, as command lines: its namespaces, mounts and devices, and the
small /etc of one that sees the host's own /usr."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ale_jax.sandbox import agent_program, toolkit
from ale_jax.sandbox.booting import AGENT_ID, ROOT_ID, files_limit, user_id
from ale_jax.sandbox.disk.roots import Root
from ale_jax.sandbox.host_ids import HostId
from ale_jax.sandbox.runner.processes import ENVIRONMENT
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


def line_in_memory(spec: SandboxSpec, etc: list[str], user: HostId | None) -> list[str]:
    """Returns the line that starts a sandbox with its files in memory, without the program in it.

    etc: the arguments that put files into /etc. user: whose processes they are on the host.
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
    line += [*etc, *_devices(), "--remount-ro", "/", "--chdir", WORK]
    return [*(_as_user(user.number) if user else ()), *_mounting(spec), *line]


def line_on_disk(spec: SandboxSpec, root: Root, tools: Path) -> list[str]:
    """As `line_in_memory`, for a root on disk. tools: the files of the toolkit."""
    # There are several users here, so the runner can be another one than the agent.
    kept = ROOT_CAPABILITIES if spec.user == "root" else ("SETUID", "SETGID")
    line = _namespaces(["--userns", str(root.users.namespace)], ROOT_ID, kept)
    for name, value in toolkit.environment().items():
        line += ["--setenv", name, value]
    line += ["--bind", str(root.path), "/", "--ro-bind", str(tools), toolkit.HOME]
    return [*_as_user(root.users.first), *line, *_devices(), "--chdir", WORK]


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
