"""Findings, and the report that prints each of them as soon as it is made."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any

from ale_jax.errors import RunFailed
from ale_jax.monitor.text import one_line
from ale_jax.sandbox.api import SandboxError

# What a check may raise because of the machine; anything else is a bug.
EXPECTED = (ValueError, OSError, RunFailed, SandboxError)
NAME_WIDTH = 20
MAX_LINE = 1000  # characters of a finding; what other processes send is cut, too


class State(enum.StrEnum):
    """Whether a check found what a run needs, may get along without, or cannot go without."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check. found: on this machine. remedy: what to type or to change, unless it
    is ok, or `found` is the message of an error, which has its remedy in it."""

    name: str
    state: State
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.found}: {self.remedy}" if self.remedy else self.found
        return f"{self.state:<5} {self.name:<{NAME_WIDTH}} {one_line(text, MAX_LINE)}"

    @classmethod
    def parse(cls, fields: Any) -> Finding:
        """Parses what another process sent. ValueError if it is no finding."""
        if not isinstance(fields, list) or len(fields) != len(dataclasses.fields(cls)):
            raise ValueError(f"{fields!r:.80} is no finding")
        name, state, found, remedy = map(str, fields)
        return cls(one_line(name, NAME_WIDTH), State(state), found, remedy)


def ok(name: str, found: str) -> Finding:
    return Finding(name, State.OK, found)


def warn(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, State.WARN, found, remedy)


def fail(name: str, found: str, remedy: str = "") -> Finding:
    return Finding(name, State.FAIL, found, remedy)


class Report:
    """The findings of one process, of which those that are not the first say their number."""

    def __init__(self, process: int):
        self.process = process
        self.findings: list[Finding] = []

    @property
    def failed(self) -> bool:
        return any(finding.state is State.FAIL for finding in self.findings)

    def add(self, finding: Finding) -> bool:
        """Prints the finding; whether it is no failure."""
        self.findings.append(finding)
        self.say(str(finding))
        return finding.state is not State.FAIL

    def check(
        self, name: str, check: Callable[..., Finding | Iterator[Finding]], *arguments: Any
    ) -> bool:
        """Makes a check, or several, whose expected errors are failures; whether none failed."""
        try:
            found = check(*arguments)
            added = [self.add(each) for each in ([found] if isinstance(found, Finding) else found)]
        except EXPECTED as error:
            return self.add(fail(name, str(error) or repr(error)))
        return all(added)

    def conclude(self) -> None:
        """Prints the last line."""
        states = [finding.state for finding in self.findings]
        failures, warnings = states.count(State.FAIL), states.count(State.WARN)
        verdict = "not ready" if failures else "ready"
        self.say(f"{verdict}: {len(states)} checks, failed: {failures}, warnings: {warnings}")

    def say(self, line: str) -> None:
        own = f"process {self.process}: {line}" if self.process else line
        # With its end in one string: an unbuffered stdout writes each string by itself, and the
        # processes of --spawn share it.
        print(f"{own}\n", end="", flush=True)
