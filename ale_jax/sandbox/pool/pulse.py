"""Whether a sandbox still answers, found out without waiting for it."""

from __future__ import annotations

import asyncio
import time

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStats
from ale_jax.sandbox.async_sandbox import AsyncSandbox


class Pulse:
    """Asks the runner for its statistics, one question at a time.

    One that answers runs in a machine that lives, so the runtime need not be asked as well. stats:
    the last answer. cpu_percent: of one core, between the last two.
    """

    def __init__(self, ask_ticks: int, tick_seconds: float):
        self.stats: SandboxStats | None = None
        self.cpu_percent: float | None = None
        self._ask_ticks, self._tick_seconds = ask_ticks, tick_seconds
        self._question: asyncio.Task[tuple[SandboxStats, float]] | None = None
        self._ticks = 0  # since the last question, or since the last answer
        self._answered_at = 0.0

    @property
    def silent_seconds(self) -> float:
        """For which it has owed an answer; counted in ticks."""
        is_owed = self._question is not None and not self._question.done()
        return self._ticks * self._tick_seconds if is_owed else 0.0

    def beat(self, sandbox: AsyncSandbox, patience: int) -> str | None:
        """One tick. Why the sandbox counts as dead, or None. patience: ticks without an answer."""
        self._ticks += 1
        if self._question is None:
            if self._ticks >= self._ask_ticks:
                self._question = asyncio.get_running_loop().create_task(_timed_stats(sandbox))
                self._ticks = 0
            return None
        if self._question.done():
            return self._take_answer()
        if self._ticks < patience:
            return None
        self.stop()
        return "it does not answer"

    def stop(self) -> None:
        if self._question is not None:
            self._question.cancel()
            self._question = None

    def _take_answer(self) -> str | None:
        question, self._question, self._ticks = self._question, None, 0
        error = question.exception()
        if error is None:
            self._take_stats(*question.result())
        elif isinstance(error, SandboxLost):
            return str(error)
        elif not isinstance(error, SandboxError):
            return repr(error)  # a fault of ours; the other sandboxes are not to suffer from it
        return None  # it lives, and could not say how

    def _take_stats(self, stats: SandboxStats, at: float) -> None:
        before, self.stats = self.stats, stats
        seconds, self._answered_at = at - self._answered_at, at
        if stats.cpu_seconds is not None and before is not None and before.cpu_seconds is not None:
            self.cpu_percent = 100.0 * (stats.cpu_seconds - before.cpu_seconds) / seconds


async def _timed_stats(sandbox: AsyncSandbox) -> tuple[SandboxStats, float]:
    return await sandbox.stats(), time.monotonic()
