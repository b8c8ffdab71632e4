"""Attempts at episodes: what is known of each while it is played, and the deadlines it may miss."""

from __future__ import annotations

import dataclasses

from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.gateway.custody.ledger import Activity
from ale_jax.monitor.events import ATTEMPT_FAILED, Recorder
from ale_jax.monitor.times import NO_GROUP, AttemptTimes
from ale_jax.records import Episode, EpisodeKey, Trajectory
from ale_jax.status import STATUS_RULES, Status
from ale_jax.system.rollouts.breaker import Job
from ale_jax.system.rollouts.pool import Playing


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An attempt at an episode that is being played. playing: of the pool that plays it. is_trial:
    whether it was begun to see if the system works again (see Breaker). begun: on the workers'
    clock, in seconds."""

    job: Job
    conversation: str
    playing: Playing
    is_trial: bool
    begun: float

    @property
    def key(self) -> EpisodeKey:
        return self.job.request.key

    def times(
        self, now: float, episode: Episode, result: Trajectory | None, judging: Judging | None
    ) -> AttemptTimes:
        """Returns what is told of it when it ends. judging: None if it has never left its place."""
        return AttemptTimes(
            begun=self.begun,
            ended=judging.left if judging else now,
            status=episode.status,
            group=self.key.group if self.key.is_trained_on else NO_GROUP,
            turns=episode.turns,
            tokens=result.num_policy_tokens if result else 0,
            verdict=judging.spent(now) if judging else 0.0,
        )

    def note_failure(self, record: Recorder, status: Status, detail: str, retried: bool) -> None:
        """Records that it has failed."""
        record(
            ATTEMPT_FAILED if STATUS_RULES[status].infra else "attempt_rejected",
            detail,
            status=status.value,
            phase=self.key.phase,
            group=self.key.group,
            member=self.key.member,
            family=self.key.task.family,
            item=self.key.task.item,
            num_prefix_turns=self.key.num_prefix_turns,
            attempt=self.job.attempt,
            retried=retried,
        )


@dataclasses.dataclass
class Judging:
    """An attempt whose place is free, and whose verdict comes later. left: when it left its place.
    begun: when it got a reward worker; None while it has none. Both are on the workers' clock, in
    seconds. seconds: of reward workers, for verdicts that have ended. failures: of verdicts that
    the system failed, without those before an outage."""

    left: float
    begun: float | None = None
    seconds: float = 0.0
    failures: int = 0

    def spent(self, now: float) -> float:
        """Returns the seconds of reward workers until now."""
        return self.seconds + (0.0 if self.begun is None else now - self.begun)

    def end(self, now: float) -> None:
        """Notes that its reward worker is free."""
        self.seconds, self.begun = self.spent(now), None

    def missed(self, now: float, deadlines: DeadlinesConfig) -> str:
        """Returns as `missed`. The queue before reward workers is not the attempt's fault. A
        verdict that misses its deadline is not repeated alone: its thread has the world, and cannot
        be ended."""
        if self.begun is None:
            return ""
        return _late("took too long for its verdict", now - self.begun, deadlines.turn_seconds)


@dataclasses.dataclass(frozen=True)
class Cancelled:
    """An attempt that was told to end. reason: the deadline that it missed; None if nobody wants
    its result. until: when it is given up if it has not ended. heard: when its last sign of life
    had come. Both are on the workers' clock, in seconds."""

    reason: str | None
    until: float
    heard: float


def missed(activity: Activity, deadlines: DeadlinesConfig) -> str:
    """Returns the deadline that an attempt has missed, in words; empty if it has missed none."""
    if activity.waits:
        return ""  # for the policy, which is not the attempt's fault
    if not activity.asked:
        return _late("did not begin", activity.turn_seconds, deadlines.placement_seconds)
    return _late(
        "took too long for a turn", activity.turn_seconds, deadlines.turn_seconds
    ) or _late("took too long", activity.total_seconds, deadlines.episode_seconds)


def _late(what: str, seconds: float, limit: float) -> str:
    if seconds <= limit:
        return ""
    return f"the episode {what}: {seconds:.0f} s, and {limit:g} s are allowed"


def failed(key: EpisodeKey, status: Status, detail: str) -> Episode:
    """Returns the report of an episode in place of its worker, which could not report."""
    return Episode(
        key=key,
        status=status,
        reward=None,
        turns=0,
        malformed_calls=0,
        seconds=0.0,
        env_seconds=0.0,
        detail=detail,
    )
