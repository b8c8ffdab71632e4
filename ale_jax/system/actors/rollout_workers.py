"""The rollout workers: Ray actors that play episodes, with deadlines, and with retries after what
the system failed."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Collection, Iterator

import ray

from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig, RolloutConfig
from ale_jax.monitor.events import ATTEMPT_FAILED, Recorder
from ale_jax.records import (
    STATUS_RULES,
    Episode,
    RolloutRequest,
    Status,
    Trajectory,
)
from ale_jax.rollout.play import EpisodeResult
from ale_jax.system.actors.attempts import Attempt, Cancelled, failed, missed
from ale_jax.system.actors.breaker import SYSTEM_FAULTS, Breaker, Job, RetryQueue, backoff
from ale_jax.system.actors.policy_replicas import PolicyReplicas
from ale_jax.system.actors.rollout_worker import ACTOR_LOST, WorkerSpec
from ale_jax.system.actors.worker_pool import WorkerPool

NAME_BYTES = 16  # of a conversation's name, which is a secret: it gives access to the conversation
LOOK_S = 0.05  # between two looks at whether a retry may begin
CHECK_S = 0.5  # between two looks at the deadlines
CANCEL_S = 10.0  # what is not over so long after it was cancelled ends with its actor


@dataclasses.dataclass(frozen=True)
class WorkerCounts:
    """sandboxes_up, sandboxes_busy: at present; busy counts the episodes in progress.
    sandboxes_restarted: since the workers were started, by this process of the run.
    """

    sandboxes_up: int
    sandboxes_busy: int
    sandboxes_restarted: int


class RolloutWorkers:
    """Plays episodes on `rollout.actors` actors; there is exactly one result for every key,
    and none for the keys of an abandoned group.

    Consumes: keys, by `submit`, as long as `free_places` > 0.
    Waits for: any actor's answer, in `results`: an episode, or that an actor is up, or that one is
    lost. Each attempt has one answer, so a dead actor's episodes end one by one.
    Unblocked by: the first answer that ends a key, or the timeout.

    Attempts that failed for a reason in the system, or that were rejected, are repeated from the
    same initial state in a new conversation, up to `rollout.retries` times. While a breaker is open
    (see Breaker), nothing begins but its trials, and attempts that had begun before fail without
    using up a retry. An attempt that misses a deadline is cancelled; an actor that does not end it
    within CANCEL_S is replaced. All of this happens inside `results`.

    An actor is given episodes from its birth on, which is when a node has room for it. So the
    actors that there are go on while others wait for a node: at the start of the run, or after
    theirs has left. What was played on a node that left is played again, and no retry is used up.

    An attempt, and the methods that take it from one state to the next:

        submit, _begin_retries
          -> in progress (in _attempts)
               |  _cancel: it misses a deadline, or its group is abandoned
               |    -> cancelled (also in _cancelled)
               |         |  _give_up, CANCEL_S later or more: its actor is replaced
               v         v
             _take: it has answered, or its actor is lost
               |  abandoned: no result
               v
             _judge: by its status, which is DEADLINE if it was cancelled
               |  to be repeated: its job waits (in _waiting) for _begin_retries
               v
             a trajectory

    It has no thread of its own: one thread calls all methods but `waiting_for`. The actors talk to
    the policy directly.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        deadlines: DeadlinesConfig,
        spec: WorkerSpec,
        replicas: PolicyReplicas,
        record: Recorder,
    ):
        """record: `EventLog.record`, called for lost, started and unplaced actors, for failed
        attempts and for pauses."""
        self._replicas, self._record, self._retries = replicas, record, rollout.retries
        self._deadlines = deadlines
        self._pool = WorkerPool(rollout, spec, deadlines.placement_seconds, record)
        self._attempts: dict[ray.ObjectRef, Attempt] = {}
        self._cancelled: dict[ray.ObjectRef, Cancelled] = {}
        self._waiting = RetryQueue()
        self._breaker = Breaker(deadlines.outage_seconds, record)
        self._next_check, self._asking = 0.0, 0

    def __enter__(self) -> RolloutWorkers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def free_places(self) -> int:
        """Number of keys that can be submitted now. Retries have a place before new keys."""
        return max(self._free_places() - len(self._waiting), 0)

    def _free_places(self) -> int:
        places = self._pool.free
        if self._breaker.is_open:
            return min(places, int(self._breaker.may_begin))
        return places

    @property
    def counts(self) -> WorkerCounts:
        workers = self._pool.workers
        return WorkerCounts(
            sandboxes_up=sum(worker.sandboxes_up for worker in workers),
            sandboxes_busy=len(self._attempts),
            sandboxes_restarted=sum(worker.sandboxes_restarted for worker in workers),
        )

    def submit(self, request: RolloutRequest, sampling: Sampling) -> None:
        """Starts an episode; there must be a free place."""
        assert self.free_places > 0, "every place is taken"
        self._begin(Job(request, sampling))

    def results(self, timeout: float) -> Iterator[Trajectory]:
        """Yields the trajectories that have finished, as soon as there is one; none if there is
        none within `timeout` seconds. Those that a caller leaves come with the next call.

        Errors: RolloutsFailed if actors cannot be placed or kept alive, or run other code, or if
        all attempts have failed for `outage_seconds`; RayTaskError, with its traceback, if an
        episode failed for a reason that no status describes, which is a bug.
        """
        deadline, is_over = time.monotonic() + timeout, False
        while not is_over:
            self._begin_retries()
            self._check()
            left = max(deadline - time.monotonic(), 0.0)
            answers = self._answers(min(left, LOOK_S))
            is_over = not answers and not left
            for answer in answers:
                if answer in self._pool.births:
                    self._pool.welcome(answer)
                # The others are of actors that were replaced since.
                elif answer in self._attempts and (trajectory := self._take(answer)):
                    is_over = True
                    yield trajectory

    def abandon(self, groups: Collection[int]) -> None:
        """Ends all attempts at episodes of these training groups. They have no result."""
        self._waiting.discard(groups)
        for answer, attempt in self._attempts.items():
            if attempt.job.is_of(groups):
                self._cancel(answer, attempt, None)

    def waiting_for(self) -> str:
        """What the next result depends on, in words; empty if no episode is wanted. May be called
        from any thread."""
        if paused := self._breaker.state():
            return paused
        attempts = list(self._attempts.values())
        if not attempts:
            again = f"{len(self._waiting)} episodes wait for another attempt" * bool(self._waiting)
            return self._pool.waiting_for() or again
        oldest, task = attempts[0], attempts[0].key.task
        return (
            f"{len(attempts)} episodes are in progress, {self._asking} of which wait for the "
            f"policy; the oldest one is attempt {oldest.job.attempt} at task {task.seed} of "
            f"{task.family}, on actor {oldest.worker.number}"
        )

    def start_versions(self) -> dict[int, int]:
        """Training group -> the oldest start version of its conversations in progress. Groups whose
        conversations have no reply yet are left out."""
        oldest: dict[int, int] = {}
        for answer, attempt in self._attempts.items():
            if not attempt.key.is_trained_on or answer in self._cancelled:
                continue
            start, group = self._replicas.start_version(attempt.conversation), attempt.key.group
            if start is not None:
                oldest[group] = min(start, oldest.get(group, start))
        return oldest

    def close(self) -> None:
        """Ends all actors and their sandboxes. Episodes in progress give no result."""
        for attempt in self._attempts.values():
            self._replicas.close(attempt.conversation, None)
        self._attempts.clear()
        self._pool.close()

    def _answers(self, timeout: float) -> list[ray.ObjectRef]:
        """All answers that have come, as soon as there is one; none after `timeout` seconds."""
        awaited = [*self._pool.births, *self._attempts]
        if not awaited:
            time.sleep(timeout)
            return []
        ready, _ = ray.wait(awaited, timeout=timeout)
        if ready:
            ready, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0)
        return ready

    def _begin_retries(self) -> None:
        while self._free_places() > 0 and (job := self._waiting.next_ready()):
            self._begin(job)

    def _begin(self, job: Job) -> None:
        worker = self._pool.freest()
        conversation = secrets.token_urlsafe(NAME_BYTES)
        request = job.request
        redraw = sum(STATUS_RULES[status].redraw for status in job.rejected)
        url = self._replicas.open(
            conversation, request.key, job.sampling, request.prefix_turns, redraw
        )
        is_trial = self._breaker.begin()
        node = worker.born.node
        attempt = Attempt(job, conversation, worker, worker.generation, node, is_trial)
        answer = worker.play(request.key, url, conversation, request.prefix)
        self._attempts[answer] = attempt
        worker.busy += 1

    def _check(self) -> None:
        """Cancels attempts that miss a deadline, and replaces actors that do not end theirs."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        self._breaker.check()
        self._pool.check()
        asking = 0
        for answer, attempt in list(self._attempts.items()):
            if cancelled := self._cancelled.get(answer):
                if now > cancelled.until:
                    self._give_up(attempt, cancelled)
                continue
            activity = self._replicas.activity(attempt.conversation)
            asking += activity.waits
            if reason := missed(activity, self._deadlines):
                self._cancel(answer, attempt, reason)
        self._asking = asking

    def _give_up(self, attempt: Attempt, cancelled: Cancelled) -> None:
        why = f" ({cancelled.reason})" * bool(cancelled.reason)
        text = f"an episode was not over {CANCEL_S:g} s after it was cancelled{why}"
        self._pool.replace(attempt.worker, attempt.generation, TimeoutError(text))

    def _cancel(self, answer: ray.ObjectRef, attempt: Attempt, reason: str | None) -> None:
        self._replicas.stop(attempt.conversation)
        attempt.worker.cancel(attempt.key)
        # An abandoned attempt may still be within a turn, and nothing is wrong with its actor.
        patience = CANCEL_S if reason else CANCEL_S + self._deadlines.turn_seconds
        self._cancelled[answer] = Cancelled(reason, time.monotonic() + patience)

    def _take(self, answer: ray.ObjectRef) -> Trajectory | None:
        """Ends one attempt: returns the key's trajectory, or lets the next attempt wait."""
        attempt, cancelled = self._attempts.pop(answer), self._cancelled.pop(answer, None)
        attempt.worker.busy -= 1
        episode = self._episode(attempt, answer)
        if cancelled:
            if cancelled.reason is None:
                self._breaker.void(attempt.is_trial)
                self._replicas.close(attempt.conversation, None)
                return None
            episode = failed(attempt.key, Status.DEADLINE, cancelled.reason)
        return self._judge(attempt, episode)

    def _judge(self, attempt: Attempt, episode: Episode) -> Trajectory | None:
        job, status, rule = attempt.job, episode.status, STATUS_RULES[episode.status]
        fault = f"{status.value}: {episode.detail}" if status in SYSTEM_FAULTS else ""
        has_left = status is Status.ACTOR_LOST and self._pool.node_has_left(attempt.node)
        if has_left:
            self._breaker.void(attempt.is_trial)
        else:
            self._breaker.note(attempt.key.task, fault, attempt.is_trial)
        # An attempt whose node left, or that had begun before an outage, says nothing of its task.
        is_free = has_left or (bool(fault) and self._breaker.is_open and not attempt.is_trial)
        again = rule.retry and (is_free or job.attempt <= self._retries)
        if rule.retry:
            self._note_failure(attempt, episode, again)
        if not again:
            trajectory = self._replicas.close(attempt.conversation, episode)
            return dataclasses.replace(trajectory, rejected=job.rejected)
        self._replicas.close(attempt.conversation, None)
        rejected = job.rejected if is_free else (*job.rejected, status)
        # What was rejected for its behaviour is drawn anew, and there is nothing to wait for.
        delay = backoff(len(rejected) or 1) if rule.infra and not rule.redraw else 0.0
        self._waiting.put(job._replace(rejected=rejected), delay)
        return None

    def _episode(self, attempt: Attempt, answer: ray.ObjectRef) -> Episode:
        try:
            played: EpisodeResult = ray.get(answer)
        except ACTOR_LOST as error:
            self._pool.replace(attempt.worker, attempt.generation, error)
            return failed(attempt.key, Status.ACTOR_LOST, f"{type(error).__name__}: {error}")
        if attempt.generation == attempt.worker.generation:
            attempt.worker.note(played)
        return played.episode

    def _note_failure(self, attempt: Attempt, episode: Episode, again: bool) -> None:
        key = attempt.key
        self._record(
            ATTEMPT_FAILED if STATUS_RULES[episode.status].infra else "attempt_rejected",
            episode.detail,
            status=episode.status.value,
            phase=key.phase,
            group=key.group,
            member=key.member,
            family=key.task.family,
            seed=key.task.seed,
            num_prefix_turns=key.num_prefix_turns,
            attempt=attempt.job.attempt,
            retried=again,
        )
