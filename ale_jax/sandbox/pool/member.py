"""One sandbox of a pool, under one id, through all its generations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.pool.api import Cause, SandboxGone, StartRequest, State, Status
from ale_jax.sandbox.pool.pulse import Pulse
from ale_jax.sandbox.pool.states import Life


class Member:
    """What a pool knows of a sandbox.

    is_warm: it is nobody's yet. sandbox: None while there is no machine. arrival: done when it
    runs, or with the reason why it never will. starters: callers of `start` that wait for it;
    was_delivered: one of them has it. losses: since a call succeeded. birth, ending: what is under
    way with it. after: the end of what was in its slot before.
    """

    def __init__(
        self, id: str, request: StartRequest, clock: Callable[[], float], generation: int = 0
    ):
        self.id, self.request, self.generation = id, request, generation
        self.is_warm = self.was_delivered = False
        self.sandbox: AsyncSandbox | None = None
        self.pulse: Pulse | None = None
        self.busy = self.starters = self.losses = 0
        self.birth: asyncio.Task | None = None
        self.birth_began = False
        self.after: asyncio.Task | None = None
        self.ending: asyncio.Task | None = None
        self.arrival: asyncio.Future[None] = _future()
        self._clock = clock
        self.started_at = self.used_at = clock()
        self.life = Life.begin(self.started_at)

    def to(self, state: State, detail: str = "", cause: Cause | None = None) -> None:
        self.life = self.life.to(state, self._clock(), detail, cause)

    def arrive(self) -> None:
        """It is up: from now on it is its owner's, or warm."""
        self.to(State.READY if self.is_warm else State.RUNNING)
        self.used_at = self._clock()
        if self.generation == 0:
            self.started_at = self.used_at
        self.arrival.set_result(None)

    def never_arrives(self, error: Exception) -> None:
        """Whoever waits for it gets `error`."""
        if not self.arrival.done():
            self.arrival.set_exception(error)
            self.arrival.exception()  # nobody may be waiting

    def expect(self) -> None:
        """A next generation is on its way."""
        self.arrival = _future()

    def gone(self) -> SandboxGone:
        return SandboxGone(self.id, self.life.cause)

    def overdue(self) -> Cause | None:
        """Which of its limits it has outlived. A call under way is use, a look at it is not."""
        now, request = self._clock(), self.request
        if 0 < request.deadline_seconds <= now - self.started_at:
            return Cause.DEADLINE
        if not self.busy and 0 < request.idle_seconds <= now - self.used_at:
            return Cause.IDLE
        return None

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        self.busy, self.used_at = self.busy + 1, self._clock()
        try:
            yield
        finally:
            self.busy, self.used_at = self.busy - 1, self._clock()

    def status(self, node: str, runtime: str) -> Status:
        running = self.life.state is State.RUNNING and self.pulse is not None
        return Status(
            id=self.id,
            node=node,
            runtime=runtime,
            state=self.life.state,
            cause=self.life.cause,
            generation=self.generation,
            busy=self.busy,
            started_at=self.started_at,
            used_at=self.used_at,
            spec=self.request.spec,
            labels=dict(self.request.labels),
            history=self.life.history,
            stats=self.pulse.stats if running else None,
            cpu_percent=self.pulse.cpu_percent if running else None,
            silent_seconds=self.pulse.silent_seconds if running else 0.0,
        )


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
