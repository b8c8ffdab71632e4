"""User ids of the host that only one running sandbox has: one, or a range for a root on disk.

The kernel counts some resources for each user of the host, whatever the namespace: inotify
instances, queued signals, descriptors in flight. With a user of its own, a sandbox can exhaust only
its own share.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.runner.files import RUNNER_ID

VARIABLE = "ALE_SANDBOX_UIDS"
# Beyond the ids that distributions and systemd assign to users, services and containers.
DEFAULT = "1879048192-1879113727"
UID_MAP = Path("/proc/self/uid_map")
LOCKS = Path("/run/ale-sandbox-uids")
# struct flock of 64-bit Linux: type, whence, start, length, pid.
FLOCK = "hhqqi4x"


class HostId:
    """A user id that no other sandbox has until `release` or the end of this process."""

    def __init__(self, number: int, lock: int):
        self.number = number
        self._lock = lock
        self._releasing = threading.Lock()

    def release(self) -> None:
        """May be called again, and by several threads: who gives up an episode closes its sandbox,
        and so does who played it. A descriptor that is closed twice may by then be another's."""
        with self._releasing:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1


def claim() -> HostId:
    """A free id. Errors: SandboxStartError, if none is free or the range is invalid."""
    first, last = _range()
    # Each id is one byte of a file that every process locks. The kernel frees a lock when the last
    # descriptor of its open file is closed, so that nothing is left of a process that was killed.
    lock = os.open(LOCKS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    count = last - first + 1
    start = random.randrange(count)  # most likely free, and not one that was used just before
    for offset in range(count):
        number = first + (start + offset) % count
        try:
            fcntl.fcntl(
                lock,
                fcntl.F_OFD_SETLK,
                struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0),
            )
        except BlockingIOError:
            continue
        return HostId(number, lock)
    os.close(lock)
    raise SandboxStartError(
        f"all {count} user ids of {VARIABLE}={first}-{last} are in use: extend the range"
    )


def _range() -> tuple[int, int]:
    text = os.environ.get(VARIABLE) or _default()
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 1 << 31):
        raise SandboxStartError(f"{VARIABLE}={text!r:.80} must be a range like {DEFAULT}")
    return int(first), int(last)


def _default() -> str:
    """DEFAULT, or the upper half of the ids that exist here, in a container with fewer."""
    spans = [tuple(map(int, line.split())) for line in UID_MAP.read_text().splitlines()]
    first, _, count = max(spans, key=lambda span: span[2])
    last = first + count - 1
    return DEFAULT if last >= int(DEFAULT.partition("-")[2]) else f"{first + count // 2}-{last}"


FIRST, RANGE, RANGES = 1 << 29, 1 << 16, 4096
ANSWER_S = 10.0
# Is created without a mapping, reports that it is there, and with a mapping forbids that the
# sandbox creates further user namespaces.
_HOLDER = "echo; read _ && echo 0 > /proc/sys/user/max_user_namespaces && echo && read _"


class UserRange:
    """The user ids `first` to `first` + RANGE - 1 of the host, which no other process has.

    namespace: an open user namespace in which they are 0 to 65534, and the runner's. As user root
    of it, an installer can give files to every user of the image.
    """

    def __init__(self, first: int, namespace: int, claim: int):
        self.first, self.namespace, self._claim = first, namespace, claim

    def close(self) -> None:
        os.close(self.namespace)
        os.close(self._claim)


def claim_range(directory: Path) -> UserRange:
    """Claims a free range. directory: holds the locks of all processes of this host.

    The kernel frees the lock if this process dies. Errors: OSError.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    for number in range(RANGES):
        lock = os.open(directory / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = FIRST + number * RANGE
            return UserRange(first, _namespace(first), lock)
        except BlockingIOError:
            os.close(lock)
        except BaseException:
            os.close(lock)
            raise
    raise OSError(f"all {RANGES} ranges of user ids in {directory} are in use")


def _namespace(first: int) -> int:
    with _holder(first) as holder:
        _await(holder)
        for ids in ("uid_map", "gid_map"):
            table = f"0 {first} {RANGE - 1}\n{RUNNER_ID} {first + RANGE - 1} 1\n"
            Path(f"/proc/{holder.pid}/{ids}").write_text(table)
        assert holder.stdin is not None
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        _await(holder)
        return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def _holder(first: int) -> Iterator[subprocess.Popen]:
    # Created by its own user 0, who may then enter it; the host's root stays outside of it.
    enter = ["setpriv", f"--reuid={first}", f"--regid={first}", "--clear-groups"]
    line = [*enter, "unshare", "--user", "--keep-caps", "sh", "-c", _HOLDER]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd="/", stdin=pipe, stdout=pipe, stderr=pipe) as holder:
        try:
            yield holder
        finally:
            holder.kill()


def _await(holder: subprocess.Popen) -> None:
    assert holder.stdout is not None
    if not holder.stdout.readline():
        _, words = holder.communicate(timeout=ANSWER_S)
        raise OSError(f"cannot create a user namespace: {words.decode(errors='replace').strip()}")
