"""The protocol that every sandbox runtime implements, its records, and functions that save and
restore a sandbox's state through that protocol."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.spec import SandboxSpec


class SandboxError(RuntimeError):
    """A failure of the infrastructure, never of the command: start failed, runner gone."""


class SandboxStartError(SandboxError):
    """The sandbox could not be started; the message says in which phase and why."""


class SandboxLost(SandboxError):
    """The sandbox, or the runner in it, died while it was in use."""


class SnapshotGone(SandboxError):
    """The snapshot is no longer kept."""


class ImageMissing(SandboxStartError):
    """There is no image with that name; the message says how to get it."""


@dataclasses.dataclass(frozen=True)
class ExecResult:
    """A finished command. A non-zero exit code is data, not an error.

    output: stdout and stderr in the order in which they were written, with undecodable bytes
        replaced.
    omitted_bytes: number of bytes left out of the middle of `output`.
    session_ended: the command ended its session (`exit`), or could not be stopped without it. The
        next command gets a new session, without this one's variables and functions.
    """

    output: str
    exit_code: int
    timed_out: bool
    omitted_bytes: int
    seconds: float
    session_ended: bool = False


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a command on a session's terminal wrote since the last `expect`.

    output: up to the end of the match, with undecodable bytes replaced.
    matched: False if the command ended or the time was over before there was a match.
    exit_code: of the command; None while it runs.
    omitted_bytes: as in `ExecResult`.
    """

    output: str
    matched: bool
    exit_code: int | None
    omitted_bytes: int


MAX_PATTERN = 1000


def check_pattern(pattern: str) -> None:
    """Errors: ValueError if `pattern` is not a regular expression that a sandbox can match."""
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"pattern {pattern!r:.80} must have at most {MAX_PATTERN} characters")
    try:
        re.compile(pattern.encode())
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern {pattern!r:.80} is no regular expression: {error}") from error


@dataclasses.dataclass(frozen=True)
class ProcessResult:
    """A finished process that was started on its own, not in a session. A non-zero exit code is
    data, not an error.

    stdout, stderr: head and tail of each, at most `spec.output_bytes`.
    exit_code: 128 + the signal number if a signal ended the process, 124 if it timed out.
    """

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool
    omitted_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """A process that goes on without a caller, as `ProcessResult`. exit_code: None while it runs.
    seconds: since its start, or that it took."""

    name: str
    stdout: str
    stderr: str
    exit_code: int | None
    timed_out: bool
    omitted_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """A directory entry. kind: "file", "directory", "link" or "other"; mode: permission bits, as
    chmod(1) takes them; modified: in whole seconds from 1970; undecodable bytes in the name are
    replaced."""

    name: str
    kind: str
    bytes: int
    mode: int
    modified: int


@dataclasses.dataclass(frozen=True)
class SandboxStats:
    """The current resource usage of a sandbox.

    processes: number of the agent's processes.
    disk_bytes, disk_limit_bytes: use and capacity of all writable directories together.
    cpu_seconds: used by all its processes, including those that have ended.
    memory_bytes: memory that counts towards the limit and cannot be reclaimed.

    The last two are None where the host does not measure them (bubblewrap without cgroups).
    """

    processes: int
    disk_bytes: int
    disk_limit_bytes: int
    cpu_seconds: float | None = None
    memory_bytes: int | None = None


class Sandbox(Protocol):
    """One isolated machine with a persistent bash session in /work. Use it in a `with` block."""

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        """Runs `command` in the session; cwd, variables and functions persist for the next one.

        timeout: seconds, `spec.command_seconds` if None. When it expires, the command is
            interrupted (Ctrl-C), what it has started is killed soon after, and the exit code is
            124. The session keeps its state and its earlier background processes. If the shell
            itself cannot be interrupted, the next command gets a new session in the same directory.

        A command that ends its session (`exit`, `exec`) returns the session's exit code, and the
        next command gets a new session in /work.
        """

    def begin(self, command: str) -> None:
        """Starts `command` in the session, on a terminal, and returns. For a dialogue with it:

            box.begin("python3")
            box.expect(">>> ")
            box.send("6 * 7\\n")
            print(box.expect(">>> ").output)

        The session is busy until the command ends. There is no time limit; `interrupt` is Ctrl-C.

        Errors: SandboxError if the session is busy.
        """

    def send(self, text: str) -> None:
        """Types `text` (end a line with a newline) into the command that `begin` has started.

        Errors: SandboxError if no such command runs, or it does not read its input.
        """

    def expect(self, pattern: str | None = None, timeout: float | None = None) -> Expected:
        """Reads what that command writes until it matches `pattern`, it ends, or time is over.

        pattern: a regular expression of `re`, matched as bytes against at least the last 4 KiB; the
            rest of the output is left for the next call. None: read until the command ends.
        timeout: seconds, `spec.command_seconds` if None. When it expires, the command goes on.

        It is matched inside the sandbox, so a pattern that takes very long costs only this sandbox.

        Errors: ValueError for an invalid pattern; SandboxError if there was no such command.
        """

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Returns the first `max_bytes` of a file. The path is absolute or relative to /work.

        Errors: FileNotFoundError if the agent itself could not read it as a regular file, or not
        without waiting, or if any part of the path is a symbolic link; ValueError for a path that
        contains `..`.
        """

    def write(self, files: Mapping[str, bytes]) -> None:
        """Writes files below /work (paths are relative to it), creating missing directories.

        Existing files are replaced, and links are not followed.

        Errors: ValueError for a path that could lead outside /work; OSError if the files do not
        fit or a directory is in the way.
        """

    def snapshot(self) -> bytes:
        """Returns an opaque archive of all files in /work, /tmp and `spec.writable`, except those
        that the agent may not read.

        Errors: SandboxError if the archive is larger than two times `spec.files_mb` for each of
        these directories.
        """

    def restore(self, snapshot: bytes) -> None:
        """Resets, then restores the files of a `snapshot` of a sandbox with the same spec.

        Errors: SnapshotGone, with the sandbox as it was, where snapshots are kept elsewhere.
        """

    def reset(self) -> None:
        """Returns the sandbox to its initial state: kills the agent's processes, empties /work and
        /tmp, and restores `spec.writable` from the image. The next command gets a new session."""

    def kill_processes(self) -> None:
        """Kills everything that the agent started. Files stay; the next `run` opens a session in
        /work.

        Within one session, a command can make the shell misreport later commands. Only commands
        that run after this call are independent of earlier ones.
        """

    def alive(self) -> bool:
        """Whether the machine is still running. Costs one system call or one daemon request."""

    def close(self) -> None:
        """Stops the machine and frees its resources. Any thread may call it, more than once."""

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *exc: object) -> None: ...


class JudgedSandbox(Sandbox, Protocol):
    """What a verifier needs besides."""

    @property
    def spec(self) -> SandboxSpec: ...

    @property
    def network(self) -> EgressPolicy:
        """The network policy that currently applies."""

    def set_network(self, policy: EgressPolicy) -> None:
        """Replaces the network policy. ValueError if this sandbox cannot have that one."""

    def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Runs one process outside of all sessions. A string is run by bash as a command line."""

    def replace_directory(self, path: str, files: Mapping[str, bytes]) -> None:
        """Makes `path` (absolute) a directory that contains only `files` (paths relative to it),
        and that only the agent's user may enter.

        Kills the agent's processes, and removes whatever is at or in the way of `path`.

        Errors: as `write`; OSError for a path that is not writable.
        """

    def renew(self, image: str = "") -> None:
        """As `reset`, but on a machine where nothing of an earlier episode has run, which takes as
        long as a start. Errors: SandboxStartError, with the old machine as it is then.

        image: of that machine; empty: the spec's, as which it goes on after the next reset, restore
            or renewal.
        """


class Runtime(Protocol):
    """Starts sandboxes. Thread-safe.

    capabilities: how each limit of a spec ("memory", "pids", "files") is enforced here, as text
        for humans.
    """

    name: str
    capabilities: Mapping[str, str]

    def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> JudgedSandbox:
        """Returns a working sandbox that does not outlive this process. Errors: SandboxStartError.

        labels: shown to operators as ale.KEY=VALUE where the runtime supports it (`docker ps`).
        """

    def reap(self) -> int:
        """Removes only what dead owner processes left behind; returns the number removed."""


# A checksum over all state of a session besides file contents: exit status of the last command,
# number of processes, working directory, umask, traps, aliases, jobs, options, limits, functions,
# and variables except those that change by themselves. It also covers what a snapshot may lose of
# files: modes, links and unreadable files. It runs in the session itself, because only there does
# a `cd` or an `export` show.
PROBE = r"""echo "$? $(set -- /proc/[0-9]*; echo $#)"
{ pwd; umask; trap; alias; jobs; set +o; shopt; ulimit -a; declare -f
declare -p | grep -vE '^declare -[^ ]+ (__token|BASHPID|BASH_[A-Z]+|EPOCH[A-Z]+|S?RANDOM)=' |
grep -vE '^declare -[^ ]+ (SECONDS|LINENO|PIPESTATUS|_)='
find /work /tmp -printf '%p %y %m %s %l\n' | sort; } | sha256sum
find /work -maxdepth 0 -printf '%y\n'"""
# In an image without these tools the output does not match, and the state is unknown.
_PROVED = re.compile(r"[0-9]+ [0-9]+\n[0-9a-f]{64}  -\nd\n?")


@dataclasses.dataclass(frozen=True)
class SavedState:
    """files: the result of `Sandbox.snapshot`; session: the output of PROBE."""

    files: bytes
    session: str


def save(sandbox: Sandbox) -> SavedState | None:
    """Returns the current state, or None if PROBE fails in the session. Errors: SandboxError."""
    session = _probe(sandbox)
    return None if session is None else SavedState(sandbox.snapshot(), session)


def load(sandbox: Sandbox, saved: SavedState) -> bool:
    """Restores the files and opens a new session. Returns False if that does not reproduce the
    saved state: a snapshot holds no working directory, no variables and no processes of a session.

    Errors: SandboxError.
    """
    try:
        sandbox.restore(saved.files)
    except SnapshotGone:
        return False
    return _probe(sandbox) == saved.session


def _probe(sandbox: Sandbox) -> str | None:
    output = sandbox.run(PROBE).output
    return output if _PROVED.fullmatch(output) else None
