"""What an image holds, seen from outside: nothing of it is run."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import stat
import tarfile
import time
from collections.abc import Iterator

from docker.errors import NotFound

from ale_jax.sandbox.hub.daemon import Daemon, Image, asking
from ale_jax.sandbox.hub.manifest import Capabilities
from ale_jax.sandbox.owner import Owner

FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin")
LOADERS = {
    "glibc": ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"),
    "musl": ("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1"),
}
PASSWD, AGENT = "/etc/passwd", b"agent:"
MAX_PASSWD_BYTES = 1 << 20
MAX_LINKS = 8
LOOK_S = 600
SYMLINK = 1 << 27  # in a mode as Go's os.FileMode has it; the lowest nine bits are Unix's


def capabilities_of(api: Daemon, image: Image) -> Capabilities:
    """Looks through a container of `image` that is never started."""
    with asking(f"look into image {image.id}"), _container(api, image) as container:
        has = {name: _has_program(api, container, name) for name in ("bash", "python3", "tar")}
        present = [
            libc
            for libc, paths in LOADERS.items()
            if any(_is_program(api, container, path) for path in paths)
        ]
        agent = _knows_agent(api, container)
        return Capabilities(**has, agent=agent, libc=present[0] if present else "none")


@contextlib.contextmanager
def _container(api: Daemon, image: Image) -> Iterator[str]:
    # The labels by which a runtime's reaper knows what a dead process left behind.
    labels = {"ale.owner": str(Owner.current()), "ale.deadline": str(int(time.time()) + LOOK_S)}
    container = api.create_container(image.id, ["-"], labels=labels)["Id"]
    try:
        yield container
    finally:
        with contextlib.suppress(NotFound):
            api.remove_container(container, force=True, v=True)


def _has_program(api: Daemon, container: str, name: str) -> bool:
    return any(_is_program(api, container, f"{folder}/{name}") for folder in FOLDERS)


def _is_program(api: Daemon, container: str, path: str) -> bool:
    found = _status(api, container, path)
    return found is not None and bool(found["mode"] & stat.S_IXUSR)


def _status(api: Daemon, container: str, path: str) -> dict | None:
    """Name, size and mode of what `path` leads to, links followed; None if it leads nowhere."""
    for _ in range(MAX_LINKS):
        answer = api.head(_archive(api, container), params={"path": path}, timeout=api.timeout)
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        status = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
        if not status["mode"] & SYMLINK:
            return status
        path = status["linkTarget"]
    return None


def _knows_agent(api: Daemon, container: str) -> bool:
    status = _status(api, container, PASSWD)
    if status is None or status["size"] > MAX_PASSWD_BYTES:
        return False
    params = {"path": PASSWD}
    # Not get_archive(), which switches the time limit off.
    with api.get(_archive(api, container), params=params, timeout=api.timeout) as answer:
        answer.raise_for_status()
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
            member = archive.next()
            content = archive.extractfile(member) if member and member.isfile() else None
            return content is not None and any(line.startswith(AGENT) for line in content)


def _archive(api: Daemon, container: str) -> str:
    """Where the daemon's API has the files of a container."""
    return f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
