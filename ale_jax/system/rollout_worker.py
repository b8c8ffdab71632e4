"""The process that plays episodes: a shell around `rollout.play`. It never imports jax."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable

from ale_jax.agent.loop import AgentLimits
from ale_jax.records import EpisodeKey, Prefix
from ale_jax.rollout.play import EpisodeResult, EpisodeRunner
from ale_jax.rollout.policy_client import PolicyAddress, PolicyClient
from ale_jax.sandbox.api import Sandbox
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from envs.registry import make_env, needs_sandbox


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
    """All that a rollout worker needs to know. runtime: of sandboxes, by name. sandbox: None where
    no task needs one."""

    runtime: str
    sandbox: SandboxSpec | None
    limits: AgentLimits
    server: PolicyAddress


class RolloutWorker:
    """Made into a Ray actor by `WorkerHandle`; its methods are called from several threads at
    once."""

    def __init__(self, spec: WorkerSpec):
        start_sandbox = _starter(spec.runtime, spec.sandbox) if spec.sandbox else None
        self._runner = EpisodeRunner(start_sandbox, make_env, needs_sandbox, spec.limits)
        self._server = spec.server

    def pid(self) -> int:
        return os.getpid()

    def play(self, key: EpisodeKey, conversation: str, prefix: Prefix | None) -> EpisodeResult:
        with PolicyClient(self._server, conversation) as policy:
            return self._runner.play(key, policy, prefix)

    def close(self) -> None:
        self._runner.close()


def _starter(runtime_name: str, spec: SandboxSpec) -> Callable[[], Sandbox]:
    runtime = pick_runtime(runtime_name, spec)
    runtime.reap()  # what a killed predecessor on this machine left
    return functools.partial(runtime.start, spec, {"role": "rollout_worker"})
