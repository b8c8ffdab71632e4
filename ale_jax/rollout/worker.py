"""A rollout worker: plays the episodes that it is given, several at once. Loads no jax."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

from ale_jax.agent.api import Environment
from ale_jax.agent.external import PolicyAccess
from ale_jax.config.agent import AgentLimits, ExternalAgent
from ale_jax.records import EpisodeKey, Prefix, Task
from ale_jax.rollout.play import EpisodeResult, EpisodeRunner
from ale_jax.rollout.policy_client import PolicyClient
from ale_jax.sandbox.api import Sandbox
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.runtime import runtime_of_run
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.spec import SandboxSpec


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
    """The configuration of a rollout worker. runtime: name of the sandbox runtime, whose
    connections leave its host by `uplink`, or URL of the service of sandboxes, to which `login`
    belongs. sandbox: None if no task needs a sandbox. agent: with a command, it plays instead of
    our own loop. solved_at: as in `WorldsConfig`."""

    runtime: str
    sandbox: SandboxSpec | None
    limits: AgentLimits
    agent: ExternalAgent = dataclasses.field(default_factory=ExternalAgent)
    solved_at: tuple[tuple[str, float], ...] = ()
    login: ServiceLogin = dataclasses.field(default_factory=ServiceLogin)
    uplink: Uplink = DIRECT


class Worlds(Protocol):
    """The module `envs.registry`."""

    def make_env(self, task: Task, sandbox: Sandbox | None) -> Environment: ...

    def needs_sandbox(self, task: Task) -> bool: ...


class RolloutWorker:
    """Its methods are called from several threads at once."""

    def __init__(self, spec: WorkerSpec, worlds: Worlds):
        self._agent, self._solved_at = spec.agent, dict(spec.solved_at)
        start_sandbox = _starter(spec, spec.sandbox) if spec.sandbox else None
        self._runner = EpisodeRunner(
            start_sandbox, worlds.make_env, worlds.needs_sandbox, spec.limits
        )

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> EpisodeResult:
        """Plays an episode to its end. url: of the gateway, which knows the conversation by its
        name."""
        if self._agent.command:
            access = PolicyAccess(url, conversation)
            return self._as_configured(self._runner.play_external(key, self._agent, access))
        with PolicyClient(url, conversation) as policy:
            played = self._runner.play(key, policy, prefix, attempt=conversation)
            return self._as_configured(played)

    def _as_configured(self, played: EpisodeResult) -> EpisodeResult:
        episode = played.episode
        at = self._solved_at.get(episode.key.task.family, episode.solved_at)
        return dataclasses.replace(played, episode=dataclasses.replace(episode, solved_at=at))

    def cancel(self, conversation: str) -> None:
        """Ends the episode in progress by closing its sandbox, if it has one."""
        self._runner.cancel(conversation)

    def close(self) -> None:
        """Closes all sandboxes, which ends the episodes in progress."""
        self._runner.close()


def _starter(worker: WorkerSpec, sandbox: SandboxSpec) -> Callable[[], Sandbox]:
    runtime = runtime_of_run(worker.runtime, sandbox, worker.login, worker.uplink)
    runtime.reap()  # removes sandboxes that a killed process on this machine has left behind
    return functools.partial(runtime.start, sandbox, {"role": "rollout_worker"})
