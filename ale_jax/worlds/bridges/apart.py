"""Checks that may never end, in processes that are ended then."""

from __future__ import annotations

import functools
import json
import os
import queue
import subprocess
import sys
from typing import Any

from ale_jax.worlds.api import NoVerdictError, VerifierError
from ale_jax.worlds.bridges import confined, judging_child

PROCESSES = 2  # of each check; more episodes wait


class Apart:
    """The processes of one check, which start when they are needed and end with this one. May be
    shared by threads."""

    def __init__(self, check: str):
        self._check = check
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(PROCESSES):
            self._idle.put(None)

    def is_right(self, reply: str, answer: str, seconds: float, control: str) -> bool:
        """Tells whether a reply is right. control: a reply of ours, which shows whether the check
        or the reply is at fault where there is no verdict.

        Raises:
          NoVerdictError: the check has a verdict on `control`, but none on the reply in `seconds`.
          VerifierError: it has none on `control` either.
        """
        told = self._asked(reply, answer, seconds)
        if "right" in told:
            return bool(told["right"])
        of_control = self._asked(control, answer, seconds)
        if "right" in of_control:
            raise NoVerdictError(f"{self._check}: {told['error']}")
        raise VerifierError(f"{self._check} with {answer!r:.80}: {of_control['error']}")

    def _asked(self, reply: str, answer: str, seconds: float) -> dict[str, Any]:
        process = self._idle.get()
        try:
            process = process or self._started()
            question = {"reply": reply, "answer": answer, "seconds": seconds}
            told = self._line(process, json.dumps(question) + "\n")
            if told is None:
                code, process = process.wait(), None
                return {"error": f"no verdict within {seconds:g} s (it ended with {code})"}
            return told
        finally:
            self._idle.put(process)

    def _started(self) -> subprocess.Popen[bytes]:
        # math-verify has sympy read what a policy wrote, and sympy evaluates.
        line = [sys.executable, "-P", judging_child.__file__, self._check]
        process = confined.started(line, os.environ, subprocess.DEVNULL)
        if self._line(process, "") is None:
            raise VerifierError(f"{self._check} does not start: it ended with {process.wait()}")
        return process

    def _line(self, process: subprocess.Popen[bytes], question: str) -> dict[str, Any] | None:
        """Returns the next line of a process; None if it has ended."""
        assert process.stdin and process.stdout
        try:
            process.stdin.write(question.encode())
        except BrokenPipeError:
            return None
        line = process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None


@functools.cache
def apart(check: str) -> Apart:
    """Returns the processes of a check, the same ones for all worlds."""
    return Apart(check)
