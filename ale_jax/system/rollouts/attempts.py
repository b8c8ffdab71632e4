"""Attempts at episodes: what is known of each while it is played, and the deadlines it may miss."""

from __future__ import annotations

import dataclasses

from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.gateway.custody.ledger import Activity
from ale_jax.records import Episode, EpisodeKey
from ale_jax.status import Status
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


@dataclasses.dataclass
class Judging:
    """An attempt whose place is free, and whose verdict comes later. left: when it left its place.
    begun: when it got a reward worker; None before. Both are on the workers' clock, in seconds."""

    left: float
    begun: float | None = None

    def missed(self, now: float, deadlines: DeadlinesConfig) -> str:
        """Returns as `missed`. The queue before reward workers is not the attempt's fault."""
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
