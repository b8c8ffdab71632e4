"""The protocol that every sandbox runtime implements, the records that it exchanges, and the saving
and restoring of a sandbox's state through that protocol."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Protocol

from ale_jax.sandbox.spec import SandboxSpec


class SandboxError(RuntimeError):
    """Trouble of the infrastructure (never of the command that ran): start failed, runner gone."""


class SandboxStartError(SandboxError):
    """The sandbox could not be started; the message says in which phase, and why."""


class SandboxLost(SandboxError):
    """The sandbox, or the runner in it, died while it was in use."""


class ImageMissing(SandboxStartError):
    """There is no image of that name; the message says how to get it."""


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


@dataclasses.dataclass(frozen=True)
class ProcessResult:
    """A finished process that was started by itself, not in a session. A non-zero exit code is
    data. stdout, stderr: head and tail of each, at most `spec.output_bytes`; exit_code: 128 + the
    signal's number if one ended it, 124 if its time was over."""

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool
    omitted_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """An entry of a directory. kind: "file", "directory", "link" or "other"; mode: as chmod(1)
    takes it; undecodable bytes of the name are replaced."""

    name: str
    kind: str
    bytes: int
    mode: int


@dataclasses.dataclass(frozen=True)
class SandboxStats:
    """Now. processes: of the agent's. disk_bytes: in its writable directories together, and how
    many may be. cpu_seconds: that all its processes have used, dead ones too. memory_bytes: that
    count towards its limit and could not be freed. Both None where the host does not count them
    (bubblewrap without control groups)."""

    processes: int
    disk_bytes: int
    disk_limit_bytes: int
    cpu_seconds: float | None = None
    memory_bytes: int | None = None


class Sandbox(Protocol):
    """One isolated machine with a persistent bash session in /work. Use it in a `with` block."""

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        """Runs `command` in the session; cwd, variables and functions stay for the next one.

        timeout: seconds, `spec.command_seconds` if None. When it is over, all that the agent
        started is killed (exit code 124); the next command gets a new session, same directory.
        A command that ends its session (`exit`, `exec`) is answered with the session's exit code,
        and the next one gets a new session in /work.
        """

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """The first `max_bytes` of a file, by a path relative to /work or absolute.

        FileNotFoundError if the agent itself could not read it as a regular file, or if any part of
        the path is a symbolic link. ValueError for a path with `..` in it.
        """

    def write(self, files: Mapping[str, bytes]) -> None:
        """Writes files below /work (paths relative to it), making directories on the way.

        What is there already is replaced, links are not followed. ValueError for a path that could
        lead elsewhere, OSError if the files do not fit or a directory is in the way.
        """

    def snapshot(self) -> bytes:
        """All files that can be other than in a new sandbox (in /work, /tmp and `spec.writable`),
        but for those that the agent may not read, as an opaque archive.

        SandboxError if they take more than two times `spec.files_mb` for each such directory.
        """

    def restore(self, snapshot: bytes) -> None:
        """As `reset`, then puts the files of `snapshot` back. For a sandbox of the same spec."""

    def reset(self) -> None:
        """As new: all processes of the agent's are killed, /work and /tmp are empty, what is in
        `spec.writable` is as in the image; the next command gets a new session."""

    def kill_processes(self) -> None:
        """Kills all that the agent started. Files stay; the next `run` opens a session in /work.

        Only what runs after it is out of the hands of what ran before: within one session, a
        command can make the shell lie about the next.
        """

    def alive(self) -> bool:
        """Whether the machine still runs. Costs a system call or a question to the daemon."""

    def close(self) -> None:
        """Ends the machine and frees what it held. Any thread may call it, and again."""

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *exc: object) -> None: ...


class Runtime(Protocol):
    """Starts sandboxes. Several threads may use it at once.

    capabilities: how each limit of a spec is enforced here, for people: "memory", "pids", "files".
    """

    name: str
    capabilities: Mapping[str, str]

    def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> Sandbox:
        """A working sandbox, which ends with this process. Errors: SandboxStartError.

        labels: shown to operators where the runtime can show them (`docker ps`), as ale.KEY=VALUE.
        """

    def reap(self) -> int:
        """Removes what processes that died left behind, and nothing else; returns how much."""


# A sum over all that a session has beside files: how the last command ended, how many processes
# there are, where it stands, masks, traps, jobs, options, limits, functions, and variables but for
# those that change by themselves; and over what a snapshot may lose of files: modes, links, what
# cannot be read. The session itself says it, so that a `cd` or an `export` shows.
PROBE = r"""echo "$? $(set -- /proc/[0-9]*; echo $#)"
{ pwd; umask; trap; alias; jobs; set +o; shopt; ulimit -a; declare -f
declare -p | grep -vE '^declare -[^ ]+ (__token|BASHPID|BASH_[A-Z]+|EPOCH[A-Z]+|S?RANDOM)=' |
grep -vE '^declare -[^ ]+ (SECONDS|LINENO|PIPESTATUS|_)='
find /work /tmp -printf '%p %y %m %s %l\n' | sort; } | sha256sum
find /work -maxdepth 0 -printf '%y\n'"""
# An image without these tools proves nothing.
_PROVED = re.compile(r"[0-9]+ [0-9]+\n[0-9a-f]{64}  -\nd\n?")


@dataclasses.dataclass(frozen=True)
class SavedState:
    """files: of `Sandbox.snapshot`; session: what PROBE printed."""

    files: bytes
    session: str


def save(sandbox: Sandbox) -> SavedState | None:
    """The state as it stands; None where the session cannot be described. Errors: SandboxError."""
    session = _probe(sandbox)
    return None if session is None else SavedState(sandbox.snapshot(), session)


def load(sandbox: Sandbox, saved: SavedState) -> bool:
    """Puts the files back, in a new session; False if that is not all there was: a snapshot holds
    no directory that the session stood in, no variable, no process. Errors: SandboxError.
    """
    sandbox.restore(saved.files)
    return _probe(sandbox) == saved.session


def _probe(sandbox: Sandbox) -> str | None:
    output = sandbox.run(PROBE).output
    return output if _PROVED.fullmatch(output) else None
