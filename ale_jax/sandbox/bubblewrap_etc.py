"""The small /etc of a sandbox that has no image."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from ale_jax.sandbox.booting import AGENT_ID

ETC = Path("/etc")
ALTERNATIVES, LIBRARIES = "alternatives", "ld.so.cache"
FILES = {
    "passwd": f"root:x:0:0::/:/bin/sh\nagent:x:{AGENT_ID}:{AGENT_ID}::/work:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{AGENT_ID}:\n",
    "hosts": "127.0.0.1 localhost\n",
}


@contextlib.contextmanager
def arguments(is_writable: bool) -> Iterator[tuple[list[str], list[int]]]:
    """Of bwrap, to have its files there from the start, and the open files that they name."""
    how, fds = "--file" if is_writable else "--ro-bind-data", []
    line = [] if is_writable else ["--ro-bind-try", *[str(ETC / ALTERNATIVES)] * 2]
    try:
        for name, content in _contents().items():
            fds.append(os.memfd_create(name))
            os.write(fds[-1], content)
            os.lseek(fds[-1], 0, os.SEEK_SET)
            line += ["--perms", "0644", how, str(fds[-1]), str(ETC / name)]
        yield line, fds
    finally:
        for fd in fds:
            os.close(fd)


def archive() -> bytes:
    """All of it as a tar archive, for a sandbox that may change it, and is to be as new again."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in _contents().items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
        if (ETC / ALTERNATIVES).is_dir():
            tar.add(ETC / ALTERNATIVES, ALTERNATIVES)
    return packed.getvalue()


def _contents() -> dict[str, bytes]:
    contents = {name: text.encode() for name, text in FILES.items()}
    with contextlib.suppress(FileNotFoundError):  # a host without it needs none
        contents[LIBRARIES] = (ETC / LIBRARIES).read_bytes()
    return contents
