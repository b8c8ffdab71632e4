"""Runs a verifier in the sandbox that an agent has left, reads the reward that its tests write (as
harbor's tasks do, in reward.json or reward.txt), or runs pytest there."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ale_jax import files
from ale_jax.sandbox.api import ProcessResult, SandboxError, SandboxLost
from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.runner.processes import ENVIRONMENT
from ale_jax.sandbox.spec import ETC, SYSTEM
from ale_jax.sandbox.verify import pytest_inside

JSON_FILE, TEXT_FILE = "reward.json", "reward.txt"
MAX_BYTES = 1 << 16
REWARD = "reward"
NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def parse_text(content: bytes) -> Mapping[str, float]:
    """One finite decimal number, as {"reward": number}. ValueError for anything else."""
    text = content.strip()
    if not text:
        raise ValueError("is empty")
    if not NUMBER.fullmatch(text):
        raise ValueError(f"holds {text!r:.80} where one number has to be")
    return {REWARD: _finite(float(text), TEXT_FILE)}


def parse_object(content: bytes) -> Mapping[str, float]:
    """An object of finite numbers, by name; at least one. ValueError for anything else."""
    if not content.strip():
        raise ValueError("is empty")
    try:
        found = files.parse_json(content)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"holds {found!r:.80} where an object of numbers has to be")
    return {name: _number(name, value) for name, value in found.items()}


def _number(name: str, value: object) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"has {value!r:.80} as {name!r:.80}, which is not a number")
    return _finite(float(value), name)


def _finite(value: float, name: str) -> float:
    if not abs(value) < float("inf"):
        raise ValueError(f"has {value} as {name!r:.80}, which is not finite")
    return value


PATH = ENVIRONMENT["PATH"].split(":")
LOCAL_PROGRAMS = ("/usr/local/bin", "/usr/local/sbin")
SCRATCH = "scratch"
FIRST_UNTOLD = 126  # from here on, exit codes say "cannot be run" or "killed by a signal"


class VerifierFailed(SandboxError):
    """There is no verdict, which says nothing about the agent: trouble of the infrastructure."""


class VerifierTimedOut(VerifierFailed):
    """The tests had no verdict within their time."""


class Evidence(enum.StrEnum):
    """What the reward is taken from.

    EXIT_CODE: 0 is 1.0, up to 125 it is 0.0; no verdict beyond, where nothing of the test's own
        choice ended it.
    REPORT: the file reward.json (an object of finite numbers), or else reward.txt (one).
    BOTH: the report, and an exit code that is 0 exactly where the reward is 1: for tests in whose
        process the agent's code runs, which could end it.
    """

    EXIT_CODE = "exit_code"
    REPORT = "report"
    BOTH = "both"


@dataclasses.dataclass(frozen=True)
class Verifier:
    """files: of the tests, by path relative to `tests`. command: argv, text is a line for bash.

    tests, report: directories that the spec keeps writable, best each a part of its own: then an
    agent that fills its disk cannot keep the tests out. `report` is where the command writes
    reward.json or reward.txt; its home and its temporary files are below, too.
    cwd: where it starts, `tests` if empty. env: further variables. seconds: of the command.
    network: while it runs, None for what the agent had.
    """

    files: Mapping[str, bytes]
    command: Sequence[str] | str
    evidence: Evidence = Evidence.EXIT_CODE
    tests: str = "/tests"
    report: str = "/logs/verifier"
    cwd: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 60.0
    network: EgressPolicy | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"verifier seconds {self.seconds} must be more than 0")
        if not self.command:
            raise ValueError(f"verifier command {self.command!r} must name what to run")
        for one, other in ((self.tests, self.report), (self.report, self.tests)):
            if posixpath.commonpath([one, other]) == one:
                raise ValueError(f"verifier directories {one!r} and {other!r} must lie apart")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """rewards: by name; of an exit code or a reward.txt "reward" alone. output: of the command."""

    rewards: Mapping[str, float]
    output: ProcessResult

    @property
    def reward(self) -> float:
        """The reward called "reward", or the only one. VerifierFailed if none of several is it."""
        if REWARD in self.rewards:
            return self.rewards[REWARD]
        if len(self.rewards) > 1:
            names = ", ".join(self.rewards)
            raise VerifierFailed(f"which of the rewards {names:.200} counts? call it 'reward'")
        return next(iter(self.rewards.values()))


def verify(sandbox: BlockingSandbox, verifier: Verifier) -> Verdict:
    """Judges what the agent left behind. Its processes are dead then, its files stay, and of the
    verifier nothing is left.

    Raises:
      VerifierFailed: there is no verdict.
      SandboxError: the sandbox failed, so nothing is known.
      ValueError: the spec gives the agent parts of the system, or no network to change.
    """
    env = _environment(sandbox, verifier)
    sandbox.kill_processes()
    try:
        with _network(sandbox, verifier.network):
            _lay_out(sandbox, verifier)
            cwd = verifier.cwd or verifier.tests
            output = sandbox.exec(verifier.command, verifier.seconds, cwd=cwd, env=env)
            sandbox.kill_processes()  # what the tests left running must not write the report
        if output.timed_out:
            raise VerifierTimedOut(f"no verdict within {verifier.seconds:g} s{_words(output)}")
        return Verdict(_rewards(sandbox, verifier, output), output)
    finally:
        with contextlib.suppress(SandboxLost):  # the verdict, or the first error, says it all
            for directory in (verifier.tests, verifier.report):
                _replace(sandbox, directory, {})


def trusted_path(writable: Sequence[str]) -> str:
    """A PATH of directories that the agent could not write to. ValueError if its parts are such
    that more than programs could be replaced."""
    for part in writable:
        within = any(f"{part}/".startswith(f"{each}/") for each in (*SYSTEM, ETC))
        if within and part not in LOCAL_PROGRAMS:
            raise ValueError(
                f"nothing can be verified where the agent may write to {part!r}: "
                "leave it out of the sandbox's `writable`"
            )
    return ":".join(each for each in PATH if each not in writable)


def _environment(sandbox: BlockingSandbox, verifier: Verifier) -> dict[str, str]:
    scratch = f"{verifier.report}/{SCRATCH}"
    fresh = {"PATH": trusted_path(sandbox.spec.writable), "HOME": scratch, "TMPDIR": scratch}
    return {**fresh, **verifier.env}


@contextlib.contextmanager
def _network(sandbox: BlockingSandbox, policy: EgressPolicy | None) -> Iterator[None]:
    before = sandbox.network
    if policy is None or policy == before:
        yield
        return
    sandbox.set_network(policy)
    try:
        yield
    finally:
        sandbox.set_network(before)


def _lay_out(sandbox: BlockingSandbox, verifier: Verifier) -> None:
    _replace(sandbox, verifier.report, {})
    _replace(sandbox, f"{verifier.report}/{SCRATCH}", {})
    _replace(sandbox, verifier.tests, verifier.files)


def _replace(sandbox: BlockingSandbox, directory: str, files: Mapping[str, bytes]) -> None:
    try:
        sandbox.replace_directory(directory, files)
    except OSError as error:
        raise VerifierFailed(f"{directory!r} is not ready for the verifier: {error}") from error


def _rewards(
    sandbox: BlockingSandbox, verifier: Verifier, output: ProcessResult
) -> Mapping[str, float]:
    if verifier.evidence == Evidence.EXIT_CODE:
        if output.exit_code >= FIRST_UNTOLD:
            raise VerifierFailed(f"exit code {output.exit_code} is no verdict{_words(output)}")
        return {REWARD: float(output.exit_code == 0)}
    rewards = _reported(sandbox, verifier.report, output)
    agree = (output.exit_code == 0) == (rewards.get(REWARD) == 1.0)
    if verifier.evidence == Evidence.BOTH and not agree:
        raise VerifierFailed(
            f"the report says {dict(rewards)!r:.200}, the exit code is {output.exit_code}"
        )
    return rewards


def _reported(sandbox: BlockingSandbox, report: str, output: ProcessResult) -> Mapping[str, float]:
    for name, parse in (
        (JSON_FILE, parse_object),
        (TEXT_FILE, parse_text),
    ):
        path = f"{report}/{name}"
        try:
            content = sandbox.read(path, MAX_BYTES + 1)
        except FileNotFoundError:
            continue
        if len(content) > MAX_BYTES:
            raise VerifierFailed(f"{path} has more than {MAX_BYTES} bytes")
        try:
            return parse(content)
        except ValueError as error:
            raise VerifierFailed(f"{path} {error}") from error
    raise VerifierFailed(
        f"no report: the tests ended with exit code {output.exit_code} and left no file "
        f"{JSON_FILE} or {TEXT_FILE} in {report}{_words(output)}"
    )


def _words(output: ProcessResult) -> str:
    last = (output.stderr.strip() or output.stdout.strip())[-200:]
    return f"; they said last: {last!r}" if last else ""


SCRIPT = Path(pytest_inside.__file__)
TESTS, REPORT = "/tests", "/logs/verifier"
PYTHON = ("python3", "-I")  # isolated: neither its folder nor a variable leads it to the agent's
LOOK = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('pytest'))"
REMEDY = (
    "on bubblewrap, which uses the host's own, type: apt-get install python3-pytest; "
    "on Docker choose an image that has it, ale-shell say"
)


def pytest_verifier(
    files: Mapping[str, bytes],
    names: Sequence[str],
    cwd: str,
    seconds: float,
    network: EgressPolicy | None = None,
) -> Verifier:
    """Tests that are passed if every one that pytest collects in `names` is.

    files: by path relative to /tests, where `names` are, too. The variable TEST_DIR tells it.
    """
    if SCRIPT.name in files:
        raise ValueError(f"tests {SCRIPT.name!r}: the verifier's own file has that name; rename it")
    return Verifier(
        files={**files, SCRIPT.name: SCRIPT.read_bytes()},
        command=[*PYTHON, f"{TESTS}/{SCRIPT.name}", TESTS, f"{REPORT}/{JSON_FILE}", *names],
        evidence=Evidence.BOTH,
        tests=TESTS,
        report=REPORT,
        cwd=cwd,
        env={"TEST_DIR": TESTS},
        seconds=seconds,
        network=network,
    )


def has_pytest(sandbox: BlockingSandbox) -> bool:
    """Whether a `pytest_verifier` can run in there; if not, REMEDY says what to do."""
    return sandbox.exec(["python3", "-I", "-c", LOOK]).exit_code == 0
