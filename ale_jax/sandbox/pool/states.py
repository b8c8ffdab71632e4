"""A sandbox's way through its states: which step may follow which, and what has been."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ale_jax.sandbox.pool.api import Cause, Change, State

MAX_CHANGES = 100

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.STARTING, State.STOPPING, State.FAILED}),
    State.STARTING: frozenset({State.READY, State.RUNNING, State.STOPPING, State.FAILED}),
    State.READY: frozenset({State.STARTING, State.RUNNING, State.STOPPING, State.FAILED}),
    State.RUNNING: frozenset({State.STOPPING, State.FAILED}),
    State.STOPPING: frozenset({State.STOPPED}),
    State.STOPPED: frozenset(),
    State.FAILED: frozenset({State.PENDING}),  # it is re-created
}
# With these states goes the reason; STOPPED keeps that of STOPPING.
WITH_CAUSE = (State.STOPPING, State.FAILED)


@dataclasses.dataclass(frozen=True)
class Life:
    """Where a sandbox stands, why, and the last MAX_CHANGES steps that led there."""

    state: State
    cause: Cause | None
    history: tuple[Change, ...]

    @classmethod
    def begin(cls, at: float) -> Life:
        """at: seconds since the epoch."""
        return cls(State.PENDING, None, (Change(at, State.PENDING, ""),))

    @property
    def is_up(self) -> bool:
        return self.state in (State.READY, State.RUNNING)

    @property
    def is_over(self) -> bool:
        return self.state in (State.STOPPED, State.FAILED)

    def to(self, state: State, at: float, detail: str = "", cause: Cause | None = None) -> Life:
        """The life after one step, which must be in TRANSITIONS. cause: for WITH_CAUSE, only."""
        assert state in TRANSITIONS[self.state], (self.state, state)
        assert (cause is not None) == (state in WITH_CAUSE), (state, cause)
        if state is State.STOPPED:
            cause = self.cause
        history = (*self.history, Change(at, state, detail))[-MAX_CHANGES:]
        return Life(state, cause, history)
