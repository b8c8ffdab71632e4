"""The Ray actor that plays episodes, and the handle that replaces it when it is lost.

The actor is a thin wrapper around `rollout.worker`, and never imports JAX.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.util import get_node_ip_address

from ale_jax.errors import RolloutsFailed
from ale_jax.records import EpisodeKey, Prefix
from ale_jax.rollout.play import EpisodeResult
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.system.actors.cluster import alive_nodes
from ale_jax.system.actors.code_version import own_code
from ale_jax.system.actors.role import Role, start_actor
from ale_jax.system.rollouts.reward_workers import RewardWorkers


class Birth(NamedTuple):
    """Where an actor lives, and which code it runs (see `own_code`). node: Ray's id of the node.
    address: of the node."""

    pid: int
    node: str
    address: str
    code: dict[str, str]


class RolloutActor:
    """A rollout worker that `WorkerHandle` makes a Ray actor. Its methods are called from several
    threads at once.

    It plays once `birth` has found that it runs the code of its caller, and not before: other code
    may fail at anything, and would say something else than that.
    """

    def __init__(self, spec: WorkerSpec):
        self._spec = spec
        self._worker: RolloutWorker | None = None

    def birth(self, code: dict[str, str]) -> Birth:
        """Makes the worker, unless this process has other code, and tells where it is. code: of the
        caller."""
        if own_code() == code:
            self._worker = RolloutWorker(self._spec)
        node = ray.get_runtime_context().get_node_id()
        return Birth(os.getpid(), node, get_node_ip_address(), own_code())

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> EpisodeResult:
        return self._born.play(key, url, conversation, prefix)

    def judge(self, conversation: str) -> EpisodeResult:
        return self._born.judge(conversation)

    def cancel(self, conversation: str) -> None:
        self._born.cancel(conversation)

    @property
    def _born(self) -> RolloutWorker:
        assert self._worker is not None, "an actor with other code than its caller's plays nothing"
        return self._worker

    def close(self) -> None:
        if self._worker:
            self._worker.close()


MAX_LOSSES = 5
# What the call of an actor that died raises; the second if Ray killed it because memory ran out.
ACTOR_LOST = (RayActorError, OutOfMemoryError)


class WorkerHandle:
    """An actor and its counts. A lost actor is replaced, at most MAX_LOSSES - 1 times in a row.

    generation: number of actors that were replaced. busy: episodes in their places. judges: its
    reward workers.
    born: where the actor lives; None until then. asked_at: when Ray was asked to place it, and
    candidates: the nodes that Ray had then.
    sandboxes_up, sandboxes_restarted: as of the last finished episode.
    """

    def __init__(
        self, number: int, role: Role, spec: WorkerSpec, places: int, reward_workers: int = 0
    ):
        self.judges = RewardWorkers[Any](reward_workers)
        self.number = number
        self.generation = 0
        self.busy = 0
        self.sandboxes_up = 0
        self._restarted_before = self._restarted = 0
        self._losses = 0  # actors lost since an episode was last finished
        self._role, self._spec, self._places = role, spec, places
        self._start()

    def _start(self) -> None:
        self._actor = start_actor(self._role, self._spec)
        self.born: Birth | None = None
        self.asked_at, self.candidates = time.monotonic(), alive_nodes()
        self.birth: ray.ObjectRef = self._actor.birth.remote(own_code())

    @property
    def free(self) -> int:
        """Episodes that it can be given. None before its birth, which may never come."""
        return self._places - self.busy if self.born else 0

    @property
    def sandboxes_restarted(self) -> int:
        return self._restarted_before + self._restarted

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> ray.ObjectRef:
        return self._actor.play.remote(key, url, conversation, prefix)

    def judge(self, conversation: str) -> ray.ObjectRef:
        return self._actor.judge.remote(conversation)

    def cancel(self, conversation: str) -> None:
        self._actor.cancel.remote(conversation)

    def note(self, played: EpisodeResult) -> None:
        self._losses = 0
        self.sandboxes_up = played.sandboxes_up
        self._restarted = max(self._restarted, played.sandboxes_restarted)

    def replace(self, error: Exception, is_its_fault: bool) -> None:
        """Starts a new actor. RolloutsFailed if MAX_LOSSES were lost in a row by their own fault,
        i.e. not together with their node."""
        self._losses += is_its_fault
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

    def ask_again(self) -> None:
        """Withdraws the request for an actor that was not born in time, and repeats it."""
        ray.kill(self._actor)
        self._start()

    def say_goodbye(self) -> ray.ObjectRef:
        return self._actor.close.remote()

    def kill(self, answers: bool) -> None:
        """Kills the actor. answers: whether the actor still answers calls."""
        ray.kill(self._actor)
        here = ray.get_runtime_context().get_node_id()
        if not answers and self.born and self.born.node == here and _is_ray_actor(self.born.pid):
            # Ray asks the process to end, which a stopped one does not hear. Otherwise it is left
            # to Ray, which prints a warning of a process that it did not end itself.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.born.pid, signal.SIGKILL)


def _is_ray_actor(pid: int) -> bool:
    """False if the process has ended, and its pid belongs to somebody else by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False
