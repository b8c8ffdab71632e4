"""The Ray actor that plays episodes, and the handle that replaces it when it is lost.

The worker is a thin wrapper around `rollout.play`, and never imports JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ray
from ray.exceptions import OutOfMemoryError, RayActorError

from ale_jax.agent.loop import AgentLimits
from ale_jax.errors import RolloutsFailed
from ale_jax.records import EpisodeKey, Prefix
from ale_jax.rollout.play import EpisodeResult, EpisodeRunner
from ale_jax.rollout.policy_client import PolicyAddress, PolicyClient
from ale_jax.sandbox.api import Sandbox
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from envs.registry import make_env, needs_sandbox


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
    """The configuration of a rollout worker. runtime: name of the sandbox runtime. sandbox: None if
    no task needs a sandbox."""

    runtime: str
    sandbox: SandboxSpec | None
    limits: AgentLimits


class Birth(NamedTuple):
    """Where an actor lives. node: Ray's id of the machine."""

    pid: int
    node: str


class RolloutWorker:
    """`WorkerHandle` makes it a Ray actor. Its methods are called from several threads at once."""

    def __init__(self, spec: WorkerSpec):
        start_sandbox = _starter(spec.runtime, spec.sandbox) if spec.sandbox else None
        self._runner = EpisodeRunner(start_sandbox, make_env, needs_sandbox, spec.limits)

    def birth(self) -> Birth:
        return Birth(os.getpid(), ray.get_runtime_context().get_node_id())

    def play(
        self, key: EpisodeKey, server: PolicyAddress, conversation: str, prefix: Prefix | None
    ) -> EpisodeResult:
        with PolicyClient(server, conversation) as policy:
            return self._runner.play(key, policy, prefix)

    def cancel(self, key: EpisodeKey) -> None:
        self._runner.cancel(key)

    def close(self) -> None:
        self._runner.close()


def _starter(runtime_name: str, spec: SandboxSpec) -> Callable[[], Sandbox]:
    runtime = pick_runtime(runtime_name, spec)
    runtime.reap()  # removes sandboxes that a killed process on this machine has left behind
    return functools.partial(runtime.start, spec, {"role": "rollout_worker"})


MAX_LOSSES = 5
# What the call of an actor that died raises; the second if Ray killed it because memory ran out.
ACTOR_LOST = (RayActorError, OutOfMemoryError)


class WorkerHandle:
    """An actor and its counts. A lost actor is replaced, at most MAX_LOSSES - 1 times in a row.

    generation: number of actors that were replaced. busy: episodes in progress.
    sandboxes_up, sandboxes_restarted: as of the last finished episode.
    """

    def __init__(self, number: int, spec: WorkerSpec, places: int):
        self.number = number
        self.generation = 0
        self.busy = 0
        self.sandboxes_up = 0
        self._restarted_before = self._restarted = 0
        self._losses = 0  # actors lost since an episode was last finished
        self._spec, self._places = spec, places
        self._start()

    def _start(self) -> None:
        # One thread more than episodes, so that other calls are answered at any time.
        options = {"num_cpus": 1, "max_concurrency": self._places + 1}
        self._actor = ray.remote(RolloutWorker).options(**options).remote(self._spec)
        self._pid: int | None = None  # if it lives on this machine
        self.birth: ray.ObjectRef = self._actor.birth.remote()

    @property
    def free(self) -> int:
        return self._places - self.busy

    @property
    def sandboxes_restarted(self) -> int:
        return self._restarted_before + self._restarted

    def play(
        self, key: EpisodeKey, server: PolicyAddress, conversation: str, prefix: Prefix | None
    ) -> ray.ObjectRef:
        return self._actor.play.remote(key, server, conversation, prefix)

    def cancel(self, key: EpisodeKey) -> None:
        self._actor.cancel.remote(key)

    def note_birth(self, birth: Birth) -> None:
        if birth.node == ray.get_runtime_context().get_node_id():
            self._pid = birth.pid

    def note(self, played: EpisodeResult) -> None:
        self._losses = 0
        self.sandboxes_up = played.sandboxes_up
        self._restarted = max(self._restarted, played.sandboxes_restarted)

    def replace(self, error: Exception) -> None:
        """Starts a new actor. RolloutsFailed if MAX_LOSSES were lost in a row."""
        self._losses += 1
        if self._losses >= MAX_LOSSES:
            raise RolloutsFailed(
                f"{self._losses} actors in a row were lost before they played an episode; "
                f"the last error was: {error}"
            ) from error
        self.kill(answers=False)  # it may only be unreachable, and must not come back
        self.generation += 1
        self.sandboxes_up = 0
        self._restarted_before += self._restarted
        self._restarted = 0
        self._start()

    def say_goodbye(self) -> ray.ObjectRef:
        return self._actor.close.remote()

    def kill(self, answers: bool) -> None:
        """answers: whether the actor still answers calls."""
        ray.kill(self._actor)
        if not answers and self._pid is not None and _is_ray_actor(self._pid):
            # Ray asks the process to end, which a stopped one does not hear. Otherwise it is left
            # to Ray, which prints a warning of a process that it did not end itself.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


def _is_ray_actor(pid: int) -> bool:
    """False if the process has ended, and its pid belongs to somebody else by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False
