"""A fault that was tried, and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

HEALED, SAID, HUNG, BUG = "healed", "said", "hung", "bug"
DONE, EXPECTED = 0, 2  # exit codes of the product
TRACEBACK = "Traceback (most recent call last)"
ERROR = "error: "


@dataclasses.dataclass(frozen=True)
class Trial:
    """seconds: until it was healed or the run ended. code: of the process; None if it still ran.
    last_line: of the terminal then. notes: what was lost, and what else is wrong."""

    fault: str
    outcome: str
    seconds: float
    code: int | None
    last_line: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        fault: str,
        outcome: str,
        seconds: float,
        code: int | None,
        last_line: str,
        notes: Sequence[str],
    ) -> Trial:
        """Something wrong makes it a bug, unless it hung."""
        wrong = BUG if notes and outcome != HUNG else outcome
        return cls(fault, wrong, seconds, code, last_line, tuple(notes))


def judge(goes_on: bool, code: int | None, printed: str) -> tuple[str, list[str]]:
    """The outcome, and what makes it a bug.

    goes_on: whether the run made enough further steps. printed: all that it has printed.
    """
    if code is None:
        return (HEALED if goes_on else HUNG), []
    if code == DONE:
        return HEALED, []
    lines = [line for line in printed.splitlines() if line.strip()]
    wrong = []
    if code != EXPECTED:
        wrong.append(f"it ended by {code}")
    if TRACEBACK in printed:
        wrong.append("the terminal shows a traceback")
    if not lines or not lines[-1].startswith(ERROR):
        wrong.append("the last line is not the error")
    return (BUG if wrong else SAID), wrong
