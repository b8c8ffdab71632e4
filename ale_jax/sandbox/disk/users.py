"""Ranges of host user ids, one for each sandbox, each with a user namespace in which it is 0 to
65534, and the runner's. As user root of it, an installer can give files to every user of the image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ale_jax.sandbox.runner.rights import RUNNER_ID

FIRST, RANGE, RANGES = 1 << 29, 1 << 16, 4096
ANSWER_S = 10.0
# Is created without a mapping, reports that it is there, and with a mapping forbids that the
# sandbox creates further user namespaces.
_HOLDER = "echo; read _ && echo 0 > /proc/sys/user/max_user_namespaces && echo && read _"


class UserRange:
    """The user ids `first` to `first` + RANGE - 1 of the host, and the namespace that is open as
    `namespace`. No other process of this host has them."""

    def __init__(self, first: int, namespace: int, claim: int):
        self.first, self.namespace, self._claim = first, namespace, claim

    def close(self) -> None:
        os.close(self.namespace)
        os.close(self._claim)


def claim(directory: Path) -> UserRange:
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
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        _await(holder)
        return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def _holder(first: int) -> Iterator[subprocess.Popen]:
    # Created by its own user 0, who may then enter it; the host's root stays outside of it.
    enter = ["setpriv", f"--reuid={first}", f"--regid={first}", "--clear-groups"]
    line = [*enter, "unshare", "--user", "--keep-caps", "sh", "-c", _HOLDER]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(line, cwd="/", **pipes) as holder:
        try:
            yield holder
        finally:
            holder.kill()


def _await(holder: subprocess.Popen) -> None:
    if not holder.stdout.readline():
        _, words = holder.communicate(timeout=ANSWER_S)
        raise OSError(f"cannot create a user namespace: {words.decode(errors='replace').strip()}")
