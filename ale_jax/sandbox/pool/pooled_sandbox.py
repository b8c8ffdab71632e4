"""One sandbox of a pool, which keeps its id through all generations: states and heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStats
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.exchange import Machine
from ale_jax.sandbox.pool.accounting import Usage
from ale_jax.sandbox.pool.api import Cause, Change, SandboxGone, StartRequest, State, Status
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.vitals import Silence, Watch

MAX_CHANGES = 100
STATS_EVERY = 5  # they cost ten times what a ping costs

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.STARTING, State.STOPPING, State.FAILED}),
    State.STARTING: frozenset({State.READY, State.RUNNING, State.STOPPING, State.FAILED}),
    State.READY: frozenset({State.STARTING, State.RUNNING, State.STOPPING, State.FAILED}),
    State.RUNNING: frozenset({State.STOPPING, State.FAILED}),
    State.STOPPING: frozenset({State.STOPPED}),
    State.STOPPED: frozenset(),
    State.FAILED: frozenset({State.PENDING}),  # when it is re-created
}
# These states have a cause; STOPPED keeps the cause of STOPPING.
WITH_CAUSE = (State.STOPPING, State.FAILED)


@dataclasses.dataclass(frozen=True)
class Life:
    """A sandbox's state, the cause of it, and its last MAX_CHANGES state transitions."""

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
        """Returns the life after one of TRANSITIONS. cause: given exactly for WITH_CAUSE."""
        assert state in TRANSITIONS[self.state], (self.state, state)
        assert (cause is not None) == (state in WITH_CAUSE), (state, cause)
        if state is State.STOPPED:
            cause = self.cause
        history = (*self.history, Change(at, state, detail))[-MAX_CHANGES:]
        return Life(state, cause, history)


class Heartbeat:
    """Pings the runner every `ask_ticks` ticks, and asks it for its statistics every STATS_EVERY
    questions; one question at a time.

    An answer also shows that the machine is alive, so the runtime need not be asked. Without one,
    the ticks count in which the runner could have answered: not those in which it waited for a CPU.
    stats: the last answer. cpu_percent: of one core, between the last two answers. phase: ticks by
    which the first question comes earlier, so that many sandboxes are not asked at once.
    """

    def __init__(self, options: PoolOptions, phase: int = 0):
        self.stats: SandboxStats | None = None
        self.cpu_percent: float | None = None
        self._options = options
        self._question: asyncio.Future[Any] | None = None  # for its stats, or only a ping
        self._asked = 0
        self._asked_machine: Machine | None = None
        self._ticks = phase % options.ask_ticks  # since the last answer
        self._silent = 0  # ticks in which it could have answered the question
        self._watch: Watch | None = None
        self._answered_at = 0.0

    @property
    def silent_seconds(self) -> float:
        """How long an answer has been due, counted in ticks in which the runner could answer."""
        is_owed = self._question is not None and not self._question.done()
        return self._silent * self._options.tick_seconds if is_owed else 0.0

    def beat(self, sandbox: AsyncSandbox, is_busy: bool) -> str | None:
        """Advances by one tick. Returns why the sandbox counts as dead, or None. is_busy: during a
        call, when the runner may be killing a fork bomb and answer nothing else."""
        if self._question is None:
            self._ticks += 1
            return self._ask(sandbox) if self._ticks >= self._options.ask_ticks else None
        if self._question.done():
            return self._take_answer(sandbox.machine)
        assert self._watch is not None
        silence = self._watch.look()
        if silence is Silence.WAITING:
            return None
        self._silent += 1
        is_patient = is_busy and silence is not Silence.STOPPED
        options = self._options
        if self._silent < (options.silent_busy_ticks if is_patient else options.silent_ticks):
            return None
        self.stop()
        return "it does not answer"

    def stop(self) -> None:
        if self._question is not None:
            self._question.cancel()
            self._question = None

    def _ask(self, sandbox: AsyncSandbox) -> str | None:
        try:
            if self._asked % STATS_EVERY == 0:
                self._question = asyncio.get_running_loop().create_task(_timed_stats(sandbox))
            else:
                self._question = sandbox.ping()
        except SandboxLost as error:
            return str(error)
        self._asked += 1
        self._asked_machine = sandbox.machine
        self._silent, self._watch = 0, Watch(sandbox.vitals)
        return None

    def _take_answer(self, machine: Machine) -> str | None:
        question, self._question, self._ticks = self._question, None, 0
        assert question is not None
        error = question.exception()
        if error is None:
            if (answer := question.result()) is not None:
                self._take_stats(*answer)
        elif isinstance(error, SandboxLost):
            # A reset may have replaced the machine that was asked.
            return str(error) if machine is self._asked_machine else None
        elif not isinstance(error, SandboxError):
            return repr(error)  # a bug of ours; it must not affect the other sandboxes
        return None  # it is alive, but could not report statistics

    def _take_stats(self, stats: SandboxStats, at: float) -> None:
        before, self.stats = self.stats, stats
        seconds, self._answered_at = at - self._answered_at, at
        if stats.cpu_seconds is not None and before is not None and before.cpu_seconds is not None:
            self.cpu_percent = 100.0 * (stats.cpu_seconds - before.cpu_seconds) / seconds


async def _timed_stats(sandbox: AsyncSandbox) -> tuple[SandboxStats, float]:
    return await sandbox.stats(), time.monotonic()


class PooledSandbox:
    """What a pool knows about a sandbox.

    is_warm: it is not assigned to a request yet. sandbox: None while there is no machine. arrival:
    done when the sandbox runs; fails with the reason if it never will. starters: number of callers
    of `start` that wait for it; was_delivered: one of them has received it. renewed: when, and for
    how many seconds; None: never. losses: since a call succeeded. up_at: when its current machine
    became the owner's. starting, ending: the tasks that start and end it. after: what ends the
    slot's previous occupants.
    """

    def __init__(
        self, id: str, request: StartRequest, clock: Callable[[], float], generation: int = 0
    ):
        self.id, self.request, self.generation = id, request, generation
        self.is_warm = self.was_delivered = False
        self.sandbox: AsyncSandbox | None = None
        self.heartbeat: Heartbeat | None = None
        self.busy = self.starters = self.losses = 0
        self.starting: asyncio.Task | None = None
        self.start_began = False
        self.after: asyncio.Future | None = None
        self.ending: asyncio.Task | None = None
        self.arrival: asyncio.Future[None] = _future()
        self._clock = clock
        self.started_at = self.used_at = clock()
        self.renewed: tuple[float, float] | None = None  # the request stays what a fork begins with
        self.up_at: float | None = None
        self.life = Life.begin(self.started_at)

    def to(self, state: State, detail: str = "", cause: Cause | None = None) -> None:
        self.life = self.life.to(state, self._clock(), detail, cause)

    def started(self) -> None:
        """Marks it as up: it now belongs to its owner, or is warm."""
        self.to(State.READY if self.is_warm else State.RUNNING)
        self.used_at = self._clock()
        self.up_at = None if self.is_warm else self.used_at
        if self.generation == 0:
            self.started_at = self.used_at
        self.arrival.set_result(None)

    def never_starts(self, error: Exception) -> None:
        """Callers that wait for the start get `error`."""
        if not self.arrival.done():
            self.arrival.set_exception(error)
            self.arrival.exception()  # avoids asyncio's warning if no caller is waiting

    def expect(self) -> None:
        """Makes callers wait for the next start."""
        self.arrival = _future()

    def gone(self) -> SandboxGone:
        return SandboxGone(self.id, self.life.cause)

    def overdue(self) -> tuple[Cause, str] | None:
        """Returns which limit it has exceeded, and says so; None if none. Only calls count as
        use."""
        now, request = self._clock(), self.request
        since, seconds = self.renewed or (self.started_at, request.deadline_seconds)
        if 0 < seconds <= now - since:
            return Cause.DEADLINE, f"it was to live for {seconds:.6g} s and was not renewed"
        if not self.busy and 0 < request.idle_seconds <= now - self.used_at:
            return Cause.IDLE, f"it was not used for {request.idle_seconds:g} s"
        return None

    def renew(self, seconds: float) -> None:
        """From now, it lives for `seconds` more; 0: without a deadline. Counts as use."""
        self.used_at = self._clock()
        self.renewed = self.used_at, seconds

    @property
    def usage(self) -> Usage:
        """What its current machine has used for its owner."""
        if self.up_at is None:
            return Usage()
        stats = self.heartbeat and self.heartbeat.stats
        return Usage(self._clock() - self.up_at, (stats and stats.cpu_seconds) or 0.0)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        self.busy, self.used_at = self.busy + 1, self._clock()
        try:
            yield
        finally:
            self.busy, self.used_at = self.busy - 1, self._clock()

    def status(self, node: str, runtime: str) -> Status:
        running = self.life.state is State.RUNNING and self.heartbeat is not None
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
            stats=self.heartbeat.stats if running else None,
            cpu_percent=self.heartbeat.cpu_percent if running else None,
            silent_seconds=self.heartbeat.silent_seconds if running else 0.0,
        )


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
