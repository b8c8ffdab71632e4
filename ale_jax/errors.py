"""Failures that end a run, or a request, in one line instead of a traceback."""

from __future__ import annotations


class RunFailed(RuntimeError):
    """The run cannot go on, for a reason that is not a bug. The message says what happened and what
    the user can do; the newest checkpoint is intact."""


class RolloutsFailed(RunFailed):
    """No further episode can be played. The learner's state is good, and can still be saved."""


EXIT_FAILED = 2  # the exit code of an expected failure, which was described in one line
