"""The rollout workers: Ray actors that play episodes, with retries after the loss of an actor or a
sandbox."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Collection
from typing import Protocol

import ray
from ray.exceptions import RayError

from ale_jax.agent.loop import AgentLimits
from ale_jax.model.sampler import Sampling
from ale_jax.monitor.events import Recorder
from ale_jax.records import (
    STATUS_RULES,
    Episode,
    EpisodeKey,
    RolloutRequest,
    Status,
    Trajectory,
    Turn,
)
from ale_jax.rollout.play import EpisodeResult
from ale_jax.rollout.policy_server import PolicyServer
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.actors.rollout_worker import ACTOR_LOST, WorkerHandle, WorkerSpec
from ale_jax.system.config import RolloutConfig

NAME_BYTES = 16  # of a conversation's name, which is a secret: it gives access to the conversation
CLOSE_S = 3.0
SANDBOX_FAILURES = (Status.SANDBOX_START_FAILED, Status.SANDBOX_LOST)


@dataclasses.dataclass(frozen=True)
class WorkerCounts:
    """sandboxes_up, sandboxes_busy: at present; busy counts the episodes in progress. The others
    are since the start of the run.

    sandbox_failures: attempts that ended because their sandbox failed.
    """

    sandboxes_up: int
    sandboxes_busy: int
    sandboxes_restarted: int
    sandbox_failures: int
    actor_restarts: int


class Conversations(Protocol):
    """The part of the ledger that the workers use."""

    def open(
        self,
        name: str,
        key: EpisodeKey,
        sampling: Sampling,
        prefix_turns: tuple[Turn, ...],
        redraw: int,
    ) -> None: ...

    def start_version(self, name: str) -> int | None: ...

    def close(self, name: str, episode: Episode | None) -> Trajectory | None: ...


@dataclasses.dataclass(frozen=True)
class _Attempt:
    request: RolloutRequest
    sampling: Sampling
    rejected: tuple[Status, ...]  # how the attempts before this one ended
    conversation: str
    worker: WorkerHandle
    generation: int  # of the worker's actor that plays it

    @property
    def number(self) -> int:
        return len(self.rejected) + 1


class RolloutWorkers:
    """Plays episodes on `rollout.actors` actors; there is exactly one result for every key,
    and none for the keys of an abandoned group.

    Consumes: keys, by `submit`, as long as `free_places` > 0.
    Waits for: any actor's answer, in `next_result`: an episode, or that an actor is up, or that one
    is lost. Each attempt has one answer, so a dead actor's episodes end one by one.
    Unblocked by: the first answer that ends a key, or the timeout.

    Attempts that failed for a reason in the system, or that were rejected, are repeated from the
    same initial state in a new conversation, up to `rollout.retries` times. This happens inside
    `next_result`.

    It has no thread of its own: one thread calls `submit`, `next_result` and `abandon`. The actors
    talk to the policy directly.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        sandbox: SandboxSpec | None,
        limits: AgentLimits,
        ledger: Conversations,
        server: PolicyServer,
        record: Recorder,
    ):
        """sandbox: None if no task needs one. record: `EventLog.record`, called for lost and
        started actors and for failed attempts."""
        self._ledger, self._record, self._retries = ledger, record, rollout.retries
        spec = WorkerSpec(rollout.runtime, sandbox, limits, server.address)
        places = rollout.episodes_per_actor
        self._workers = [WorkerHandle(i, spec, places) for i in range(rollout.actors)]
        self._births: dict[ray.ObjectRef, WorkerHandle] = {
            worker.birth: worker for worker in self._workers
        }
        self._attempts: dict[ray.ObjectRef, _Attempt] = {}
        self._abandoned: set[ray.ObjectRef] = set()  # of the attempts
        self._sandbox_failures = 0

    def __enter__(self) -> RolloutWorkers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def free_places(self) -> int:
        """Number of keys that can be submitted now."""
        return sum(worker.free for worker in self._workers)

    @property
    def counts(self) -> WorkerCounts:
        return WorkerCounts(
            sandboxes_up=sum(worker.sandboxes_up for worker in self._workers),
            sandboxes_busy=len(self._attempts),
            sandboxes_restarted=sum(worker.sandboxes_restarted for worker in self._workers),
            sandbox_failures=self._sandbox_failures,
            actor_restarts=sum(worker.generation for worker in self._workers),
        )

    def submit(self, request: RolloutRequest, sampling: Sampling) -> None:
        """Starts an episode; there must be a free place."""
        assert self.free_places > 0, "every place is taken"
        self._begin(request, sampling, rejected=())

    def next_result(self, timeout: float) -> Trajectory | None:
        """The next finished trajectory; None if there is none within `timeout` seconds.

        Errors: RolloutWorkersError if actors cannot be kept alive; RayTaskError, with its
        traceback, if an episode failed for a reason that no status describes, which is a bug.
        """
        deadline = time.monotonic() + timeout
        while answers := [*self._births, *self._attempts]:
            left = max(deadline - time.monotonic(), 0.0)
            ready, _ = ray.wait(answers, timeout=left)
            if not ready:
                return None
            if ready[0] in self._births:
                self._welcome(self._births.pop(ready[0]), ready[0])
            elif trajectory := self._take(ready[0]):
                return trajectory
        # Nothing is in progress. Without this, a caller's loop would be a busy loop.
        time.sleep(max(deadline - time.monotonic(), 0.0))
        return None

    def start_versions(self) -> dict[int, int]:
        """Training group -> the oldest start version of its conversations in progress. Groups whose
        conversations have no reply yet are left out."""
        oldest: dict[int, int] = {}
        for _, attempt in self._training():
            start = self._ledger.start_version(attempt.conversation)
            if start is not None:
                group = attempt.request.key.group
                oldest[group] = min(start, oldest.get(group, start))
        return oldest

    def abandon(self, groups: Collection[int]) -> None:
        """Ends the attempts of these training groups, which give no result. A place is free again
        when its actor has noticed that the conversation has ended."""
        for answer, attempt in self._training():
            if attempt.request.key.group in groups:
                self._ledger.close(attempt.conversation, None)
                self._abandoned.add(answer)

    def _training(self) -> list[tuple[ray.ObjectRef, _Attempt]]:
        """The attempts at training episodes that are not abandoned."""
        return [
            (answer, attempt)
            for answer, attempt in self._attempts.items()
            if attempt.request.key.is_trained_on and answer not in self._abandoned
        ]

    def close(self) -> None:
        """Ends all actors and their sandboxes. Episodes in progress give no result."""
        for answer, attempt in self._attempts.items():
            if answer not in self._abandoned:
                self._ledger.close(attempt.conversation, None)
        self._attempts.clear()
        goodbyes = [worker.say_goodbye() for worker in self._workers]
        ray.wait(goodbyes, num_returns=len(goodbyes), timeout=CLOSE_S)
        for worker in self._workers:
            worker.kill()

    def _begin(
        self, request: RolloutRequest, sampling: Sampling, rejected: tuple[Status, ...]
    ) -> None:
        worker = max(self._workers, key=lambda worker: worker.free)
        conversation = secrets.token_urlsafe(NAME_BYTES)
        key, prefix_turns = request.key, request.prefix_turns
        redraw = sum(STATUS_RULES[status].redraw for status in rejected)
        self._ledger.open(conversation, key, sampling, prefix_turns, redraw)
        attempt = _Attempt(request, sampling, rejected, conversation, worker, worker.generation)
        self._attempts[worker.play(key, conversation, request.prefix)] = attempt
        worker.busy += 1

    def _take(self, answer: ray.ObjectRef) -> Trajectory | None:
        """Ends one attempt: returns the key's trajectory, or starts the next attempt."""
        attempt = self._attempts.pop(answer)
        attempt.worker.busy -= 1
        episode = self._episode(attempt, answer)
        if answer in self._abandoned:
            self._abandoned.remove(answer)
            return None
        rule = STATUS_RULES[episode.status]
        again = rule.retry and attempt.number <= self._retries
        if rule.retry:
            self._note_failure(attempt, episode, again)
        if not again:
            trajectory = self._ledger.close(attempt.conversation, episode)
            return dataclasses.replace(trajectory, rejected=attempt.rejected)
        self._ledger.close(attempt.conversation, None)
        rejected = (*attempt.rejected, episode.status)
        self._begin(attempt.request, attempt.sampling, rejected)
        return None

    def _episode(self, attempt: _Attempt, answer: ray.ObjectRef) -> Episode:
        try:
            played: EpisodeResult = ray.get(answer)
        except ACTOR_LOST as error:
            self._replace(attempt.worker, attempt.generation, error)
            return _lost(attempt.request.key, error)
        if attempt.generation == attempt.worker.generation:
            attempt.worker.note(played)
        return played.episode

    def _welcome(self, worker: WorkerHandle, birth: ray.ObjectRef) -> None:
        generation = worker.generation
        try:
            pid = ray.get(birth)
        except ACTOR_LOST as error:
            self._replace(worker, generation, error)
        else:
            detail = f"actor {worker.number} plays in process {pid}"
            self._record("actor_started", detail, actor=worker.number, pid=pid, restarts=generation)

    def _replace(self, worker: WorkerHandle, generation: int, error: RayError) -> None:
        if generation != worker.generation:
            return  # another episode of the same actor has reported the loss already
        self._record("actor_lost", str(error), actor=worker.number, restarts=generation)
        self._births.pop(worker.birth, None)
        worker.replace(error)
        self._births[worker.birth] = worker

    def _note_failure(self, attempt: _Attempt, episode: Episode, again: bool) -> None:
        self._sandbox_failures += episode.status in SANDBOX_FAILURES
        key = attempt.request.key
        self._record(
            "attempt_failed" if STATUS_RULES[episode.status].infra else "attempt_rejected",
            episode.detail,
            status=episode.status.value,
            phase=key.phase,
            group=key.group,
            member=key.member,
            num_prefix_turns=key.num_prefix_turns,
            attempt=attempt.number,
            retried=again,
        )


def _lost(key: EpisodeKey, error: RayError) -> Episode:
    return Episode(
        key=key,
        status=Status.ACTOR_LOST,
        reward=None,
        turns=0,
        malformed_calls=0,
        seconds=0.0,
        env_seconds=0.0,
        detail=f"{type(error).__name__}: {error}",
    )
