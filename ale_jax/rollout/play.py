"""Plays episodes in sandboxes that are reused from one episode to the next."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Hashable
from typing import Protocol

from ale_jax.agent import external, loop
from ale_jax.agent.api import Policy, StateMemory
from ale_jax.agent.failures import status_of
from ale_jax.agent.verdicts import Played
from ale_jax.config.agent import AgentLimits, ExternalAgent
from ale_jax.records import Episode, EpisodeKey, Prefix, Task
from ale_jax.rollout.idle import IdleSandboxes
from ale_jax.sandbox.api import JudgedSandbox, SandboxStartError
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import STATUS_RULES
from ale_jax.worlds.checked import CheckedWorld, WorldError

Play = Callable[[CheckedWorld, JudgedSandbox | None], Played]


@dataclasses.dataclass(frozen=True)
class EpisodeResult:
    """An episode, and the number of its rollout worker's sandboxes when it ended: those alive, and
    those replaced since the start. is_judged: False if its verdict is still to be made, also after
    one that failed, which is then the status of the episode."""

    episode: Episode
    sandboxes_up: int
    sandboxes_restarted: int
    is_judged: bool = True


class Worlds(Protocol):
    """What the runner asks of tasks. sandbox: that which one needs; None if it needs none. turns:
    its limit; 0 for that of all tasks. open: raises anything if the world cannot be opened."""

    def sandbox(self, task: Task) -> SandboxSpec | None: ...

    def turns(self, task: Task) -> int: ...

    def open(self, task: Task, sandbox: JudgedSandbox | None) -> CheckedWorld: ...


class EpisodeRunner:
    """Plays as many episodes at once as threads call `play`. Each has its own sandbox, or none if
    its task needs none.

    Sandboxes are started when they are first needed. A sandbox whose episode ended with an
    infrastructure failure is closed, and replaced when it is needed again. One whose episode is
    judged apart is closed, too, so that the verdict cannot touch the next episode.
    """

    def __init__(
        self,
        start_sandbox: Callable[[SandboxSpec], JudgedSandbox],
        worlds: Worlds,
        limits: AgentLimits,
        memory: StateMemory | None = None,
        judges: bool = True,
    ):
        """memory: None for a new one that only this rollout worker uses. judges: whether `play`
        makes verdicts that need no sandbox; otherwise `judge` does."""
        self._judges = judges
        self._memory = memory or StateMemory()
        self._start_sandbox, self._worlds, self._limits = start_sandbox, worlds, limits
        self._lock = threading.Lock()
        self._idle = IdleSandboxes()
        self._up: set[JudgedSandbox] = set()
        self._playing: dict[Hashable, JudgedSandbox | None] = {}  # by attempt
        self._cancelled: set[Hashable] = set()
        self._unjudged: dict[Hashable, Played] = {}
        self._given_up = 0
        self._closed = False

    def play(
        self,
        key: EpisodeKey,
        policy: Policy,
        prefix: Prefix | None = None,
        attempt: Hashable = None,
        turns: int = 0,
    ) -> EpisodeResult:
        """Plays `key.task` to its end. Failures of the system become the episode's status.

        attempt: by which `cancel` knows it; None: the key. turns: its limit; 0: the task's.
        """
        limit = turns or self._worlds.turns(key.task) or self._limits.turns
        limits = dataclasses.replace(self._limits, turns=limit)

        def by_loop(world: CheckedWorld, sandbox: JudgedSandbox | None) -> Played:
            return loop.interact(world, policy, key, limits, prefix, self._memory)

        return self._play(key, attempt or key, by_loop)

    def play_external(
        self, key: EpisodeKey, agent: ExternalAgent, access: external.PolicyAccess
    ) -> EpisodeResult:
        """Plays an episode like `play`, with an agent of its own, in a task that needs a sandbox.
        The attempt is the token of its access."""

        def by_agent(world: CheckedWorld, sandbox: JudgedSandbox | None) -> Played:
            assert sandbox, f"{key.task} has no sandbox for a program to act in"
            return external.interact(world, sandbox, agent, access, key)

        return self._play(key, access.token, by_agent)

    def _play(self, key: EpisodeKey, attempt: Hashable, play: Play) -> EpisodeResult:
        start = time.monotonic()
        with self._lock:
            self._playing[attempt] = None
        try:
            if spec := self._spec(key.task):
                played = self._play_in_sandbox(key, attempt, play, spec)
            else:
                played = play(self._opened(key.task, None), None)
            if self._judges:
                played = Played(played.judged().episode)
        except (SandboxStartError, WorldError) as error:
            played = Played(_not_begun(key, error, time.monotonic() - start))
        finally:
            with self._lock:
                del self._playing[attempt]
                self._cancelled.discard(attempt)
        if played.world:
            with self._lock:
                self._unjudged[attempt] = played
        return self._result(played.episode, is_judged=not played.world)

    def _result(self, episode: Episode, is_judged: bool) -> EpisodeResult:
        with self._lock:
            up, given_up = len(self._up), self._given_up
        return EpisodeResult(episode, up, given_up, is_judged)

    def judge(self, attempt: Hashable) -> EpisodeResult:
        """Judges an episode that `play` or `judge` returned without its verdict."""
        with self._lock:
            played = self._unjudged.pop(attempt)
        judged = played.judged()
        if not judged.is_final:
            with self._lock:
                self._unjudged[attempt] = played
        return self._result(judged.episode, judged.is_final)

    def cancel(self, attempt: Hashable) -> None:
        """Ends an episode in progress by closing its sandbox, if it has one, or forgets one that is
        to be judged, or judged again. A verdict that is being made goes on."""
        with self._lock:
            self._unjudged.pop(attempt, None)
            if attempt not in self._playing:
                return  # it has ended meanwhile
            self._cancelled.add(attempt)
            sandbox = self._playing[attempt]
        if sandbox is not None:
            sandbox.close()

    def close(self) -> None:
        """Closes all sandboxes, which ends the episodes in progress."""
        with self._lock:
            self._closed = True
            sandboxes, self._up, self._idle = self._up, set(), IdleSandboxes()
        for sandbox in sandboxes:
            sandbox.close()

    def _play_in_sandbox(
        self, key: EpisodeKey, attempt: Hashable, play: Play, spec: SandboxSpec
    ) -> Played:
        sandbox = self._take(attempt, spec)
        usable = works = False
        try:
            played = play(self._opened(key.task, sandbox), sandbox)
            works = not STATUS_RULES[played.episode.status].infra
            usable = works and not played.world
            return played
        finally:
            self._put_back(attempt, sandbox, spec if usable else None, is_given_up=not works)

    def _spec(self, task: Task) -> SandboxSpec | None:
        """WorldError if the world cannot say it."""
        try:
            return self._worlds.sandbox(task)
        except Exception as error:
            raise WorldError.of(error) from error

    def _opened(self, task: Task, sandbox: JudgedSandbox | None) -> CheckedWorld:
        """WorldError if the world cannot be opened."""
        try:
            return self._worlds.open(task, sandbox)
        except Exception as error:
            raise WorldError.of(error) from error

    def _idle_one(self, spec: SandboxSpec) -> JudgedSandbox | None:
        with self._lock:
            if sandbox := self._idle.take(spec):
                return sandbox
            other = self._idle.give_up()
            self._up.discard(other)
        if other:
            other.close()
        return None

    def _take(self, attempt: Hashable, spec: SandboxSpec) -> JudgedSandbox:
        sandbox = self._idle_one(spec) or self._start_sandbox(spec)
        with self._lock:
            is_closed, is_cancelled = self._closed, attempt in self._cancelled
            if not is_closed:
                self._up.add(sandbox)
                self._playing[attempt] = sandbox
        if is_closed:
            sandbox.close()
            raise SandboxStartError("the rollout worker was closed while the sandbox started")
        if is_cancelled:
            self._put_back(attempt, sandbox, None)
            raise SandboxStartError("the episode was cancelled while its sandbox started")
        return sandbox

    def _put_back(
        self,
        attempt: Hashable,
        sandbox: JudgedSandbox,
        spec: SandboxSpec | None,
        is_given_up: bool = True,
    ) -> None:
        """spec: None if it is not to be used again. is_given_up: because something is wrong."""
        with self._lock:
            self._playing[attempt] = None  # or a late cancellation closes it under the next one
            if self._closed:
                return
            if spec and attempt not in self._cancelled:
                self._idle.put(spec, sandbox)
                return
            self._up.remove(sandbox)
            self._given_up += is_given_up or attempt in self._cancelled
        sandbox.close()


def _not_begun(key: EpisodeKey, error: Exception, seconds: float) -> Episode:
    return Episode(
        key=key,
        status=status_of(error),
        reward=None,
        turns=0,
        malformed_calls=0,
        seconds=seconds,
        env_seconds=seconds,
        detail=f"{type(error).__name__}: {error}",
    )
