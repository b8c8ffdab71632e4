"""The small /etc of a sandbox that sees the host's own /usr."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from ale_jax.sandbox.booting import AGENT_ID
from ale_jax.sandbox.spec import SandboxSpec

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
