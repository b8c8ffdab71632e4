"""The rollout workers: play episodes, with deadlines, and with retries after what the system
failed."""

from __future__ import annotations

import dataclasses
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator

from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.monitor.events import Recorder
from ale_jax.monitor.times import AttemptTimes
from ale_jax.records import Episode, RolloutRequest, Trajectory
from ale_jax.status import STATUS_RULES, Status
from ale_jax.system.rollouts.attempts import Attempt, Cancelled, Judging, failed, missed
from ale_jax.system.rollouts.breaker import (
    REAL,
    SYSTEM_FAULTS,
    Breaker,
    Job,
    Outside,
    RetryQueue,
    backoff,
)
from ale_jax.system.rollouts.policy_replicas import PolicyReplicas
from ale_jax.system.rollouts.pool import (
    PLACES,
    REWARD_WORKERS,
    AttemptStage,
    Load,
    Playing,
    WorkerLost,
    WorkerPool,
)

NAME_BYTES = 16  # of a conversation's name, which is a secret: it gives access to the conversation
LOOK_S = 0.05  # between two looks at whether a retry may begin
CHECK_S = 0.5  # between two looks at the deadlines of up to CHECKED attempts; of more, longer
CHECKED = 1000
CANCEL_S = 10.0  # what is not over so long after it was cancelled is given up


@dataclasses.dataclass(frozen=True)
class WorkerCounts:
    """sandboxes_up, sandboxes_busy: at present; busy counts the episodes in their places.
    sandboxes_restarted: since the workers were started, by this process of the run.
    """

    sandboxes_up: int
    sandboxes_busy: int
    sandboxes_restarted: int


class RolloutWorkers:
    """Plays episodes on a pool of workers; there is exactly one result for every key, and none for
    the keys of an abandoned group.

    Consumes: keys, by `submit`, as long as `free_places` > 0.
    Waits for: any attempt that has finished, or left its place, in `results`.
    Unblocked by: the first attempt that ends a key or leaves its place, or the timeout.

    Attempts that failed for a reason in the system, or that were rejected, are repeated from the
    same initial state in a new conversation, up to `rollout.retries` times. Of an attempt whose
    verdict a reward worker could not make, that alone is repeated first, as often. While a breaker
    is open (see Breaker), nothing begins but its trials, and attempts that had begun before fail
    without using up a retry. An attempt that misses a deadline is cancelled; one that has not ended
    CANCEL_S later is given up. All of this happens inside `results`. What was played on a node that
    left is played again, and no retry is used up.

    An attempt, and the methods that take it from one state to the next:

        submit, _begin_retries
          -> in progress (in _attempts)
               |  _move: only its verdict is left to be made (also in _judging)
               |  _cancel: it misses a deadline, or its group is abandoned
               |    -> cancelled (also in _cancelled)
               |         |  CANCEL_S later or more: the pool gives it up
               v         v
             _take: it has ended, or its worker is lost, or its verdict has failed
               |  abandoned: no result
               |  _repeats_verdict: in progress (also in _unjudged, for _begin_retries)
               v
             _judge: by its status, which is DEADLINE if it was cancelled
               |  to be repeated: its job waits (in _waiting) for _begin_retries
               v
             a trajectory

    It has no thread of its own: one thread calls all methods but `waiting_for`. The workers talk to
    the policy directly.
    """

    def __init__(
        self,
        pool: WorkerPool,
        replicas: PolicyReplicas,
        deadlines: DeadlinesConfig,
        retries: int,
        record: Recorder,
        outside: Outside = REAL,
    ):
        """pool: is closed with this. record: `EventLog.record`, called for failed attempts and for
        pauses."""
        self._pool, self._replicas, self._record = pool, replicas, record
        self._clock, self._chance = outside.clock, outside.chance
        self._deadlines, self._retries = deadlines, retries
        self._attempts: dict[Playing, Attempt] = {}
        self._cancelled: dict[Playing, Cancelled] = {}
        self._judging: dict[Playing, Judging] = {}
        self._finished: deque[Playing] = deque()
        self._waiting = RetryQueue[Job](self._clock)
        self._unjudged = RetryQueue[Playing](self._clock)
        self._breaker = Breaker(deadlines.outage_seconds, record, self._clock)
        self._next_check, self._asking = 0.0, 0
        self._note: Callable[[AttemptTimes], None] = lambda times: None

    def __enter__(self) -> RolloutWorkers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def note_times(self, note: Callable[[AttemptTimes], None]) -> None:
        """Calls `note` with each attempt that ends from now on."""
        self._note = note

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
        up, restarted = self._pool.counts
        return WorkerCounts(
            sandboxes_up=up, sandboxes_busy=self._num_played, sandboxes_restarted=restarted
        )

    @property
    def loads(self) -> dict[str, Load]:
        """What places and reward workers do. Only retries are known to wait for a place."""
        played = self._num_played
        places = Load(played + self._pool.free, played, len(self._waiting))
        return {PLACES: places, REWARD_WORKERS: self._pool.judges}

    @property
    def _num_played(self) -> int:
        return len(self._attempts) - len(self._judging)

    def submit(self, request: RolloutRequest, sampling: Sampling) -> None:
        """Starts an episode; there must be a free place."""
        assert self.free_places > 0, "every place is taken"
        self._begin(Job(request, sampling))

    def results(self, timeout: float) -> Iterator[Trajectory]:
        """Yields the trajectories that have finished, as soon as there is one; none if there is
        none within `timeout` seconds, or before, if an attempt has left its place to others. Those
        that a caller leaves come with the next call.

        Errors: RolloutsFailed if the pool can play no more, or all attempts have failed for
        `outage_seconds`; what an episode has raised for a reason that no status describes, which is
        a bug.
        """
        deadline, is_over = self._clock() + timeout, False
        while not is_over:
            self._begin_retries()
            self._check()
            left = max(deadline - self._clock(), 0.0)
            patience = 0.0 if self._finished else min(left, self._next_look())
            before = len(self._judging)
            for playing in self._pool.moved(patience):
                self._move(playing)
            is_over = len(self._judging) > before or not (self._finished or left)
            while self._finished:
                if trajectory := self._take(self._finished.popleft()):
                    is_over = True
                    yield trajectory

    def _next_look(self) -> float:
        """Returns in how many seconds something may be due that no result announces."""
        if self._waiting or self._unjudged or self._breaker.is_open:
            return LOOK_S
        return max(self._next_check - self._clock(), 0.0)

    def abandon(self, groups: Collection[int]) -> None:
        """Ends all attempts at episodes of these training groups. They have no result."""
        self._waiting.discard(lambda job: job.is_of(groups))
        for attempt in self._attempts.values():
            if attempt.job.is_of(groups):
                self._cancel(attempt, None, self._clock())

    def waiting_for(self) -> str:
        """Returns what the next result depends on, in words; empty if no episode is wanted. May be
        called from any thread."""
        if paused := self._breaker.state():
            return paused
        attempts = list(self._attempts.values())
        if not attempts:
            again = f"{len(self._waiting)} episodes wait for another attempt" * bool(self._waiting)
            return self._pool.waiting_for() or again
        oldest, task = attempts[0], attempts[0].key.task
        judging = f" and {len(self._judging)} for verdicts" * bool(self._judging)
        return (
            f"{len(attempts)} episodes are in progress, {self._asking} of which wait for the "
            f"policy{judging}; the oldest one is attempt {oldest.job.attempt} at task "
            f"{task.item} of {task.family}, {oldest.playing.where}"
        )

    def start_versions(self) -> dict[int, int]:
        """Returns, for each training group, the oldest start version of its conversations in
        progress. Groups whose conversations have no reply yet are left out."""
        oldest: dict[int, int] = {}
        for playing, attempt in self._attempts.items():
            if not attempt.key.is_trained_on or playing in self._cancelled:
                continue
            start, group = self._replicas.start_version(attempt.conversation), attempt.key.group
            if start is not None:
                oldest[group] = min(start, oldest.get(group, start))
        return oldest

    def close(self) -> None:
        """Ends all workers and their sandboxes. Episodes in progress give no result."""
        left = list(self._attempts.values())
        for attempt in left:
            self._replicas.close(attempt.conversation, None)
        self._attempts.clear()
        self._pool.close()
        for attempt in left:
            cut, judging = failed(attempt.key, Status.CANCELLED, ""), self._judging
            self._note(attempt.times(self._clock(), cut, None, judging.get(attempt.playing)))

    def _begin_retries(self) -> None:
        while self._breaker.may_begin and (playing := self._unjudged.next_ready()):
            is_trial = self._breaker.begin()
            attempt = dataclasses.replace(self._attempts[playing], is_trial=is_trial)
            self._attempts[playing] = attempt
            playing.judge_again()
        while self._free_places() > 0 and (job := self._waiting.next_ready()):
            self._begin(job)

    def _begin(self, job: Job) -> None:
        conversation = secrets.token_urlsafe(NAME_BYTES)
        request = job.request
        redraw = sum(STATUS_RULES[status].redraw for status in job.rejected)
        url = self._replicas.open(
            conversation, request.key, job.sampling, request.prefix_turns, redraw
        )
        is_trial = self._breaker.begin()
        playing = self._pool.play(request.key, url, conversation, request.prefix)
        self._attempts[playing] = Attempt(job, conversation, playing, is_trial, self._clock())

    def _check(self) -> None:
        """Cancels attempts that miss a deadline, and gives up those that do not end then."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S * max(len(self._attempts) / CHECKED, 1.0)
        self._breaker.check()
        self._pool.check()
        asking = 0
        for playing, attempt in list(self._attempts.items()):
            if cancelled := self._cancelled.get(playing):
                if now > cancelled.until:
                    why = f" ({cancelled.reason})" * bool(cancelled.reason)
                    text = f"an episode was not over {CANCEL_S:g} s after it was cancelled{why}"
                    playing.give_up(text)
                continue
            if judging := self._judging.get(playing):
                reason, heard = judging.missed(now, self._deadlines), judging.left
            else:
                activity = self._replicas.activity(attempt.conversation)
                asking += activity.waits
                reason, heard = missed(activity, self._deadlines), now - activity.turn_seconds
            if reason:
                self._cancel(attempt, reason, heard)
        self._asking = asking

    def _move(self, playing: Playing) -> None:
        """Notes that an attempt is over, has left its place, is being judged, or could not be."""
        conversation, now = self._attempts[playing].conversation, self._clock()
        if playing.stage in (AttemptStage.OVER, AttemptStage.UNJUDGED):
            self._finished.append(playing)
            self._replicas.end_verdict(conversation)
            if judging := self._judging.get(playing):
                judging.end(now)
            return
        if playing not in self._judging:
            self._judging[playing] = Judging(now)
            self._replicas.leave(conversation)
        if playing.stage is AttemptStage.JUDGED:
            self._judging[playing].begun = now
            self._replicas.begin_verdict(conversation)

    def _cancel(self, attempt: Attempt, reason: str | None, heard: float) -> None:
        self._replicas.stop(attempt.conversation)
        attempt.playing.cancel()
        if self._unjudged.discard(lambda playing: playing is attempt.playing):
            self._finished.append(attempt.playing)
        # An abandoned attempt may still be within a turn, and nothing is wrong with its worker.
        patience = CANCEL_S if reason else CANCEL_S + self._deadlines.turn_seconds
        self._cancelled[attempt.playing] = Cancelled(reason, self._clock() + patience, heard)

    def _take(self, playing: Playing) -> Trajectory | None:
        """Ends one attempt: returns the key's trajectory, or lets the next attempt wait. One whose
        verdict is repeated does not end."""
        attempt, cancelled = self._attempts[playing], self._cancelled.pop(playing, None)
        has_left, heard = False, self._clock()
        try:
            episode = playing.result()
        except WorkerLost as lost:
            has_left, episode = lost.left, failed(attempt.key, Status.ACTOR_LOST, str(lost))
        if cancelled:
            if cancelled.reason is None:
                self._breaker.void(attempt.is_trial)
                self._replicas.close(attempt.conversation, None)
                self._forget(attempt, failed(attempt.key, Status.CANCELLED, ""), None)
                return None
            has_left, heard = False, cancelled.heard
            episode = failed(attempt.key, Status.DEADLINE, cancelled.reason)
        is_free = self._ask_breaker(attempt, episode, has_left, heard)
        if self._repeats_verdict(attempt, episode, is_free):
            return None
        trajectory = self._judge(attempt, episode, is_free)
        self._forget(attempt, episode, trajectory)
        return trajectory

    def _forget(self, attempt: Attempt, episode: Episode, result: Trajectory | None) -> None:
        playing, now = attempt.playing, self._clock()
        if playing.stage is AttemptStage.UNJUDGED:
            playing.cancel()  # or its worker would keep what is left to judge
        del self._attempts[playing]
        self._note(attempt.times(now, episode, result, self._judging.pop(playing, None)))

    def _ask_breaker(
        self, attempt: Attempt, episode: Episode, has_left: bool, heard: float
    ) -> bool:
        """Tells the breaker of an attempt. Returns whether that says nothing of its task: its node
        left, or it had begun before an outage. has_left: whether its worker was lost together with
        its node. heard: as of `Breaker`."""
        status = episode.status
        fault = f"{status.value}: {episode.detail}" if status in SYSTEM_FAULTS else ""
        if has_left:
            self._breaker.void(attempt.is_trial)
        else:
            self._breaker.note(attempt.key.task, fault, attempt.is_trial, heard)
        return has_left or (bool(fault) and self._breaker.is_open and not attempt.is_trial)

    def _repeats_verdict(self, attempt: Attempt, episode: Episode, is_free: bool) -> bool:
        """Lets an attempt whose verdict has failed wait for another, if it may have one."""
        playing = attempt.playing
        if playing.stage is not AttemptStage.UNJUDGED:
            return False
        judging = self._judging[playing]
        judging.failures += not is_free
        if judging.failures > self._retries:
            return False
        detail = f"its verdict alone is asked for again: {episode.detail}"
        attempt.note_failure(self._record, episode.status, detail, retried=True)
        self._attempts[playing] = dataclasses.replace(attempt, is_trial=False)
        self._unjudged.put(playing, backoff(judging.failures or 1, self._chance))
        return True

    def _judge(self, attempt: Attempt, episode: Episode, is_free: bool) -> Trajectory | None:
        """is_free: whether its failure uses up no retry."""
        job, status, rule = attempt.job, episode.status, STATUS_RULES[episode.status]
        again = rule.retry and (is_free or job.attempt <= self._retries)
        if rule.retry:
            attempt.note_failure(self._record, status, episode.detail, again)
        if not again:
            trajectory = self._replicas.close(attempt.conversation, episode)
            assert trajectory is not None, "an episode was given"
            return dataclasses.replace(trajectory, rejected=job.rejected)
        self._replicas.close(attempt.conversation, None)
        rejected = job.rejected if is_free else (*job.rejected, status)
        # What was rejected for its behaviour is drawn anew, and there is nothing to wait for.
        delay = backoff(len(rejected) or 1, self._chance) if rule.infra and not rule.redraw else 0.0
        self._waiting.put(job._replace(rejected=rejected), delay)
        return None
