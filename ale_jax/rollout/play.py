"""Plays episodes in sandboxes that are reused from one episode to the next."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Hashable

from ale_jax.agent import external, loop
from ale_jax.agent.api import Environment, Policy, StateMemory
from ale_jax.agent.environment import EnvError
from ale_jax.config.agent import AgentLimits, ExternalAgent
from ale_jax.records import Episode, EpisodeKey, Prefix, Task
from ale_jax.sandbox.api import Sandbox, SandboxStartError
from ale_jax.status import STATUS_RULES

Play = Callable[[Environment, Sandbox | None], Episode]


@dataclasses.dataclass(frozen=True)
class EpisodeResult:
    """An episode, and the number of its rollout worker's sandboxes when it ended: those alive, and
    those replaced since the start."""

    episode: Episode
    sandboxes_up: int
    sandboxes_restarted: int


class EpisodeRunner:
    """Plays as many episodes at once as threads call `play`. Each has its own sandbox, or none if
    its task needs none.

    Sandboxes are started when they are first needed. A sandbox whose episode ended with an
    infrastructure failure is closed, and replaced when it is needed again.
    """

    def __init__(
        self,
        start_sandbox: Callable[[], Sandbox] | None,
        make_env: Callable[[Task, Sandbox | None], Environment],
        needs_sandbox: Callable[[Task], bool],
        limits: AgentLimits,
        memory: StateMemory | None = None,
    ):
        """start_sandbox: None where no task needs one.
        memory: None for a new one that only this rollout worker uses."""
        self._memory = memory or StateMemory()
        self._start_sandbox, self._make_env, self._limits = start_sandbox, make_env, limits
        self._needs_sandbox = needs_sandbox
        self._lock = threading.Lock()
        self._idle: list[Sandbox] = []
        self._up: set[Sandbox] = set()
        self._playing: dict[Hashable, Sandbox | None] = {}  # by attempt
        self._cancelled: set[Hashable] = set()
        self._given_up = 0
        self._closed = False

    def play(
        self,
        key: EpisodeKey,
        policy: Policy,
        prefix: Prefix | None = None,
        attempt: Hashable = None,
    ) -> EpisodeResult:
        """Plays `key.task` to its end. Failures of the system become the episode's status.

        attempt: by which `cancel` knows it; None: the key.
        """

        def by_loop(env: Environment, sandbox: Sandbox | None) -> Episode:
            return loop.play(env, policy, key, self._limits, prefix, self._memory)

        return self._play(key, attempt or key, by_loop)

    def play_external(
        self, key: EpisodeKey, agent: ExternalAgent, access: external.PolicyAccess
    ) -> EpisodeResult:
        """Plays an episode like `play`, with an agent of its own, in a task that needs a sandbox.
        The attempt is the token of its access."""

        def by_agent(env: Environment, sandbox: Sandbox) -> Episode:
            return external.play(env, sandbox, agent, access, key)

        return self._play(key, access.token, by_agent)

    def _play(self, key: EpisodeKey, attempt: Hashable, play: Play) -> EpisodeResult:
        start = time.monotonic()
        with self._lock:
            self._playing[attempt] = None
        try:
            if self._needs_sandbox(key.task):
                episode = self._play_in_sandbox(key, attempt, play)
            else:
                episode = play(self._env(key.task, None), None)
        except (SandboxStartError, EnvError) as error:
            episode = _not_begun(key, error, time.monotonic() - start)
        finally:
            with self._lock:
                del self._playing[attempt]
                self._cancelled.discard(attempt)
        with self._lock:
            return EpisodeResult(episode, len(self._up), self._given_up)

    def cancel(self, attempt: Hashable) -> None:
        """Ends an episode in progress by closing its sandbox, if it has one."""
        with self._lock:
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
            sandboxes, self._up, self._idle = self._up, set(), []
        for sandbox in sandboxes:
            sandbox.close()

    def _play_in_sandbox(self, key: EpisodeKey, attempt: Hashable, play: Play) -> Episode:
        sandbox = self._take(attempt)
        usable = False
        try:
            episode = play(self._env(key.task, sandbox), sandbox)
            usable = not STATUS_RULES[episode.status].infra
            return episode
        finally:
            self._put_back(attempt, sandbox, usable)

    def _env(self, task: Task, sandbox: Sandbox | None) -> Environment:
        """EnvError if the environment cannot be made."""
        try:
            return self._make_env(task, sandbox)
        except Exception as error:
            raise EnvError.of(error) from error

    def _take(self, attempt: Hashable) -> Sandbox:
        with self._lock:
            sandbox = self._idle.pop() if self._idle else None
        sandbox = sandbox or self._start_sandbox()
        with self._lock:
            is_closed, is_cancelled = self._closed, attempt in self._cancelled
            if not is_closed:
                self._up.add(sandbox)
                self._playing[attempt] = sandbox
        if is_closed:
            sandbox.close()
            raise SandboxStartError("the rollout worker was closed while the sandbox started")
        if is_cancelled:
            self._put_back(attempt, sandbox, usable=False)
            raise SandboxStartError("the episode was cancelled while its sandbox started")
        return sandbox

    def _put_back(self, attempt: Hashable, sandbox: Sandbox, usable: bool) -> None:
        with self._lock:
            self._playing[attempt] = None  # or a late cancellation closes it under the next one
            if self._closed:
                return
            if usable and attempt not in self._cancelled:
                self._idle.append(sandbox)
                return
            self._up.remove(sandbox)
            self._given_up += 1
        sandbox.close()


def _not_begun(key: EpisodeKey, error: Exception, seconds: float) -> Episode:
    return Episode(
        key=key,
        status=loop.status_of(error),
        reward=None,
        turns=0,
        malformed_calls=0,
        seconds=seconds,
        env_seconds=seconds,
        detail=f"{type(error).__name__}: {error}",
    )
