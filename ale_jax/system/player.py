"""The process that plays episodes: a shell around `rollout.play`. It never imports jax."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable

from ale_jax.agent.loop import AgentLimits
from ale_jax.records import Opening, Slot
from ale_jax.rollout.play import EpisodePlayer, Played
from ale_jax.rollout.remote_policy import DoorKey, RemotePolicy
from ale_jax.sandbox.api import Sandbox
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from envs.registry import make_env, needs_sandbox


@dataclasses.dataclass(frozen=True)
class PlayerSpec:
    """All that a player needs to know. runtime: of sandboxes, by name. sandbox: None where no task
    needs one."""

    runtime: str
    sandbox: SandboxSpec | None
    limits: AgentLimits
    door: DoorKey


class PlayerActor:
    """Made into a Ray actor by `Seat`; its methods are called from several threads at once."""

    def __init__(self, spec: PlayerSpec):
        start_sandbox = _starter(spec.runtime, spec.sandbox) if spec.sandbox else None
        self._player = EpisodePlayer(start_sandbox, make_env, needs_sandbox, spec.limits)
        self._door = spec.door

    def pid(self) -> int:
        return os.getpid()

    def play(self, slot: Slot, conversation: str, opening: Opening | None) -> Played:
        with RemotePolicy(self._door, conversation) as policy:
            return self._player.play(slot, policy, opening)

    def close(self) -> None:
        self._player.close()


def _starter(runtime_name: str, spec: SandboxSpec) -> Callable[[], Sandbox]:
    runtime = pick_runtime(runtime_name, spec)
    runtime.reap()  # what a killed predecessor on this machine left
    return functools.partial(runtime.start, spec, {"role": "player"})
