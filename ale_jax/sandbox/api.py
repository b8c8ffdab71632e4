"""The protocol that every sandbox runtime speaks, and the records it exchanges."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol


class SandboxError(RuntimeError):
    """Trouble of the infrastructure (never of the command that ran): start failed, runner gone."""


class SandboxStartError(SandboxError):
    """The sandbox could not be started; the message says in which phase, and why."""


class SandboxLost(SandboxError):
    """The sandbox, or the runner in it, died while it was in use."""


@dataclasses.dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is and may use. A limit that the host cannot enforce is refused at start.

    image: name of the image recipe (Docker); bubblewrap uses the host's own /usr read-only.
    memory_mb, pids: of all its processes together. files_mb: size of /work and of /tmp, each.
    command_seconds: a command that runs longer has its process group killed.
    output_bytes: what is kept of one command's output (head and tail, the middle left out).
    """

    image: str = "ale-shell"
    memory_mb: int = 256
    pids: int = 64
    files_mb: int = 16
    command_seconds: float = 10.0
    output_bytes: int = 8192


@dataclasses.dataclass(frozen=True)
class ExecResult:
    """A finished command. A non-zero exit code is data, not an error.

    output: stdout and stderr in the order written, undecodable bytes replaced.
    omitted_bytes: how much was left out of the middle of `output`.
    """

    output: str
    exit_code: int
    timed_out: bool
    omitted_bytes: int
    seconds: float


class Sandbox(Protocol):
    """One isolated machine with a persistent bash session in /work. Use it in a `with` block."""

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        """Runs `command` in the session; cwd, variables and functions stay for the next one."""

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Reads a regular file. FileNotFoundError if it is not one; symbolic links are not followed."""

    def write(self, files: Mapping[str, bytes]) -> None:
        """Writes files below /work (paths relative to it), making directories on the way."""

    def snapshot(self) -> bytes:
        """The working files as an opaque archive."""

    def restore(self, snapshot: bytes) -> None:
        """Puts the working files back to `snapshot`, nothing else left, and starts a new session."""

    def reset(self) -> None:
        """As new: every process of the session killed, /work and /tmp empty, a new session."""

    def kill_processes(self) -> None:
        """Kills all that the agent started, the session too. Files stay. The next `run` opens a new one."""

    def alive(self) -> bool: ...

    def close(self) -> None: ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *exc: object) -> None: ...
