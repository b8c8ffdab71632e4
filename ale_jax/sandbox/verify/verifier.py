"""Runs a verifier in the sandbox that an agent has used, and reads the reward that its tests report
(to reward.json or reward.txt, as in Harbor tasks); also provides a verifier that runs pytest."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ale_jax import files
from ale_jax.sandbox.api import JudgedSandbox, ProcessResult, SandboxError, SandboxLost
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.runner.processes import ENVIRONMENT
from ale_jax.sandbox.spec import ETC, SYSTEM
from ale_jax.sandbox.verify import pytest_inside

JSON_FILE, TEXT_FILE = "reward.json", "reward.txt"
MAX_BYTES = 1 << 16
REWARD = "reward"
NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def parse_text(content: bytes) -> Mapping[str, float]:
    """Parses one finite decimal number, as {"reward": number}. ValueError for anything else."""
    text = content.strip()
    if not text:
        raise ValueError("is empty")
    if not NUMBER.fullmatch(text):
        raise ValueError(f"contains {text!r:.80}, but must contain one number")
    return {REWARD: _finite(float(text), TEXT_FILE)}


def parse_object(content: bytes) -> Mapping[str, float]:
    """Parses a JSON object with at least one finite number. ValueError for anything else."""
    if not content.strip():
        raise ValueError("is empty")
    try:
        found = files.parse_json(content)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"contains {found!r:.80}, but must contain an object of numbers")
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
FIRST_UNTOLD = 126  # this and higher exit codes mean "cannot be run" or "killed by a signal"


class VerifierFailed(SandboxError):
    """There is no verdict. Says nothing about the agent; `judge` finds out."""


class VerifierTimedOut(VerifierFailed):
    """The tests gave no verdict within their time limit."""


class Evidence(enum.StrEnum):
    """What the reward is taken from.

    EXIT_CODE: the reward is 1.0 for 0, and 0.0 up to 125. Higher codes are no verdict, since the
        tests did not choose them. Not for tests that import the agent's code: it could exit with 0.
    REPORT: the file reward.json (an object of finite numbers), or else reward.txt (one number).
        Whatever the tests start as their own user can write it, too.
    STDOUT: an object of finite numbers on standard output, with an exit code that must be 0 exactly
        if the reward is 1. For tests that run the agent's code in a process without that output.
    """

    EXIT_CODE = "exit_code"
    REPORT = "report"
    STDOUT = "stdout"


@dataclasses.dataclass(frozen=True)
class Verifier:
    """What to run in the sandbox, and how to read the result.

    files: the tests, by path relative to `tests`; None: those that the image has there.
    command: argv, or a command line for bash.
    evidence: what the reward is taken from.
    tests, report: directories that must be writable by the spec. It is best to list each as a
        separate writable directory, so that an agent that fills its disk cannot block the tests.
        The command's home and temporary files are below `report`, and so is its report.
    cwd: working directory of the command; `tests` if empty.
    env: further environment variables.
    seconds: time limit of the command.
    network: policy while the command runs; None for that of the agent.
    """

    files: Mapping[str, bytes] | None
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
                raise ValueError(f"verifier directories {one!r} and {other!r} must not be nested")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a verifier.

    rewards: by name; an exit code or a reward.txt gives only "reward".
    output: of the command.
    """

    rewards: Mapping[str, float]
    output: ProcessResult

    @property
    def reward(self) -> float:
        """The reward named "reward", or the only one. VerifierFailed if there is neither."""
        return _the_reward(self.rewards)


def _the_reward(rewards: Mapping[str, float]) -> float:
    if REWARD in rewards:
        return rewards[REWARD]
    if len(rewards) > 1:
        names = ", ".join(rewards)
        raise VerifierFailed(f"none of the rewards {names:.200} is named 'reward': rename one")
    return next(iter(rewards.values()))


def verify(sandbox: JudgedSandbox, verifier: Verifier) -> Verdict:
    """Judges what the agent left behind. Afterwards, the agent's processes are dead, its files
    remain, and nothing of the verifier is left.

    Raises:
      VerifierFailed: there is no verdict.
      SandboxError: the sandbox failed.
      ValueError: the spec lets the agent write to parts of the system, or has no network to change.
    """
    env = _environment(sandbox, verifier)
    sandbox.kill_processes()
    try:
        with _network(sandbox, verifier.network):
            _lay_out(sandbox, verifier)
            cwd = verifier.cwd or verifier.tests
            output = sandbox.exec(verifier.command, verifier.seconds, cwd=cwd, env=env)
            sandbox.kill_processes()  # processes left by the tests must not write the report
        if output.timed_out:
            raise VerifierTimedOut(f"no verdict within {verifier.seconds:g} s{_words(output)}")
        return Verdict(_rewards(sandbox, verifier, output), output)
    finally:
        with contextlib.suppress(SandboxLost):  # the verdict or the first error matters more
            for directory in (verifier.tests, verifier.report):
                _replace(sandbox, directory, {})


def trusted_path(writable: Sequence[str]) -> str:
    """A PATH of directories that the agent could not write to.

    Errors: ValueError if `writable` contains system directories other than those of local programs.
    """
    for part in writable:
        within = any(f"{part}/".startswith(f"{each}/") for each in (*SYSTEM, ETC))
        if within and part not in LOCAL_PROGRAMS:
            raise ValueError(
                f"cannot verify a sandbox in which the agent may write to {part!r}: "
                "leave it out of the sandbox's `writable`"
            )
    return ":".join(each for each in PATH if each not in writable)


def _environment(sandbox: JudgedSandbox, verifier: Verifier) -> dict[str, str]:
    spec, scratch = sandbox.spec, f"{verifier.report}/{SCRATCH}"
    if spec.disk_mb and spec.user == "root":
        raise ValueError(
            "cannot verify a sandbox on disk in which the agent is root, since it may have changed "
            "every program: start it with user 'agent', or judge a copy of its files elsewhere"
        )
    fresh = {"PATH": trusted_path(spec.writable), "HOME": scratch, "TMPDIR": scratch}
    return {**fresh, **verifier.env}


@contextlib.contextmanager
def _network(sandbox: JudgedSandbox, policy: EgressPolicy | None) -> Iterator[None]:
    before = sandbox.network
    if policy is None or policy == before:
        yield
        return
    sandbox.set_network(policy)
    try:
        yield
    finally:
        sandbox.set_network(before)


def _lay_out(sandbox: JudgedSandbox, verifier: Verifier) -> None:
    _replace(sandbox, verifier.report, {})
    _replace(sandbox, f"{verifier.report}/{SCRATCH}", {})
    if verifier.files is not None:
        _replace(sandbox, verifier.tests, verifier.files)


def _replace(sandbox: JudgedSandbox, directory: str, files: Mapping[str, bytes]) -> None:
    try:
        sandbox.replace_directory(directory, files)
    except OSError as error:
        raise VerifierFailed(f"{directory!r} is not ready for the verifier: {error}") from error


def _rewards(
    sandbox: JudgedSandbox, verifier: Verifier, output: ProcessResult
) -> Mapping[str, float]:
    if verifier.evidence == Evidence.EXIT_CODE:
        if output.exit_code >= FIRST_UNTOLD:
            raise VerifierFailed(f"exit code {output.exit_code} is not a verdict{_words(output)}")
        return {REWARD: float(output.exit_code == 0)}
    if verifier.evidence == Evidence.REPORT:
        return _reported(sandbox, verifier.report, output)
    if not output.stdout:
        raise VerifierFailed(f"no report: exit code {output.exit_code}, no stdout{_words(output)}")
    rewards = _parsed("stdout", parse_object, output.stdout.encode())
    if (output.exit_code == 0) != (rewards.get(REWARD) == 1.0):
        raise VerifierFailed(
            f"the report says {dict(rewards)!r:.200}, the exit code is {output.exit_code}"
        )
    return rewards


def _reported(sandbox: JudgedSandbox, report: str, output: ProcessResult) -> Mapping[str, float]:
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
        return _parsed(path, parse, content)
    raise VerifierFailed(
        f"no report: the tests ended with exit code {output.exit_code} and left no file "
        f"{JSON_FILE} or {TEXT_FILE} in {report}{_words(output)}"
    )


def _parsed(
    where: str, parse: Callable[[bytes], Mapping[str, float]], content: bytes
) -> Mapping[str, float]:
    try:
        return parse(content)
    except ValueError as error:
        raise VerifierFailed(f"{where} {error}") from error


def _words(output: ProcessResult) -> str:
    last = (output.stderr.strip() or output.stdout.strip())[-200:]
    return f"; last output: {last!r}" if last else ""


SCRIPT = Path(pytest_inside.__file__)
TESTS, REPORT = "/tests", "/logs/verifier"
PYTHON = ("python3", "-I")  # isolated: loads no module from cwd or an environment variable
LOOK = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('pytest'))"
REMEDY = (
    "on bubblewrap, which uses the host's own, type: apt-get install python3-pytest; "
    "on Docker choose an image that has it, such as ale-shell"
)


def pytest_verifier(
    files: Mapping[str, bytes],
    names: Sequence[str],
    cwd: str,
    seconds: float,
    network: EgressPolicy | None = None,
) -> Verifier:
    """A verifier whose reward is 1 if every test that pytest collects in `names` passes.

    files: by path relative to /tests, which is also the value of the variable TEST_DIR.
    names: test files, by path relative to /tests.
    """
    if SCRIPT.name in files:
        raise ValueError(
            f"tests {SCRIPT.name!r}: the verifier's own file has that name; rename yours"
        )
    return Verifier(
        files={**files, SCRIPT.name: SCRIPT.read_bytes()},
        command=[*PYTHON, f"{TESTS}/{SCRIPT.name}", TESTS, *names],
        evidence=Evidence.STDOUT,
        tests=TESTS,
        report=REPORT,
        cwd=cwd,
        env={"TEST_DIR": TESTS},
        seconds=seconds,
        network=network,
    )


def has_pytest(sandbox: JudgedSandbox) -> bool:
    """Whether a `pytest_verifier` can run in the sandbox; if not, REMEDY says what to do."""
    return sandbox.exec(["python3", "-I", "-c", LOOK]).exit_code == 0


@dataclasses.dataclass(frozen=True)
class Judgement:
    """rewards: by name; none without a verdict. no_verdict: why there was none; empty if there was
    one."""

    rewards: Mapping[str, float]
    no_verdict: str = ""

    @property
    def reward(self) -> float:
        """As `Verdict.reward`; 0 without a verdict."""
        return 0.0 if self.no_verdict else _the_reward(self.rewards)


def judge(
    sandbox: JudgedSandbox,
    verifier: Verifier,
    restore: Callable[[], None],
    by_name: bool = False,
    image: str = "",
) -> Judgement:
    """Judges what the agent left behind. If there is no verdict, runs the same verifier on the
    untouched task, as a control. If the control has a verdict, the agent's work is the cause.

    The control runs at once, with the same time limit, on a machine that the agent has never seen:
    what it left behind could spoil the control, or the reset before it. Its outcome is not kept,
    because it says only what the host could do at that time.

    restore: resets the sandbox and prepares the initial state of the task. by_name: several rewards
    are a verdict even if none of them is "reward". image: of the control's machine; empty: the
    sandbox's own.

    Raises:
      VerifierFailed: the control has no verdict either.
      SandboxError: the sandbox failed.
    """
    try:
        return Judgement(_verdict(sandbox, verifier, by_name))
    except VerifierFailed as error:
        missing = error
    sandbox.renew(image)
    restore()
    try:
        _verdict(sandbox, verifier, by_name)
    except VerifierFailed as error:
        raise VerifierFailed(f"{missing} (and none of the untouched task: {error})") from missing
    return Judgement({}, str(missing))


def _verdict(sandbox: JudgedSandbox, verifier: Verifier, by_name: bool) -> Mapping[str, float]:
    verdict = verify(sandbox, verifier)
    if not by_name:
        verdict.reward  # noqa: B018, raises if the report has no reward
    return verdict.rewards
