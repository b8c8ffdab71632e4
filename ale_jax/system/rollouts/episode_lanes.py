"""The episodes in progress on the run's timeline: each has a lane, and its parts."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from typing import NamedTuple

from ale_jax.monitor.text import one_line
from ale_jax.monitor.timeline import (
    BOOT,
    ENVIRONMENT,
    EPISODES,
    REPLY,
    VERDICT,
    Lane,
    Span,
    Timeline,
)
from ale_jax.records import Episode, EpisodeKey

MAX_TITLE_CHARS = 80
Interval = tuple[float, float]  # in seconds of time.monotonic


class _Open(NamedTuple):
    lane: Lane
    key: EpisodeKey
    start: float


class EpisodeLanes:
    """Records episodes when they end. Each takes the first lane that is free. One thread calls all
    methods."""

    def __init__(self, timeline: Timeline):
        self._timeline = timeline
        self._free: list[int] = []  # numbers of lanes, as a heap
        self._open: dict[str, _Open] = {}

    def begin(self, conversation: str, key: EpisodeKey) -> None:
        """Gives the episode a lane."""
        number = heapq.heappop(self._free) if self._free else len(self._open)
        self._open[conversation] = _Open(Lane(EPISODES, number), key, time.monotonic())

    def end(self, conversation: str, replies: Sequence[Interval], episode: Episode | None) -> None:
        """Records an episode. replies: when it waited for them. episode: None of an attempt without
        a result."""
        lane, key, start = self._open.pop(conversation)
        heapq.heappush(self._free, lane.number)
        whole, task = (start, time.monotonic()), key.task
        status = episode.status.value if episode else "no result"
        told: dict[str, str | int] = {"phase": key.phase, "status": status}
        told |= {"group": key.group, "member": key.member}
        title = one_line(f"{task.family} {task.item}", MAX_TITLE_CHARS)
        parts = episode_parts(whole, replies, episode.verifier_seconds if episode else 0.0)
        spans = (Span(lane, name, *interval) for name, interval in parts)
        self._timeline.write([Span(lane, title, *whole, told), *spans])


def episode_parts(
    whole: Interval, replies: Sequence[Interval], verdict_seconds: float
) -> list[tuple[str, Interval]]:
    """Returns what an episode did from its start to its end, without gaps. What comes before the
    first reply is the start of its sandbox and world, and the verdict comes last.

    >>> episode_parts((0.0, 9.0), [(2.0, 3.0), (5.0, 6.0)], verdict_seconds=1.0)
    ... # doctest: +NORMALIZE_WHITESPACE
    [('sandbox start', (0.0, 2.0)), ('reply', (2.0, 3.0)), ('environment', (3.0, 5.0)),
     ('reply', (5.0, 6.0)), ('environment', (6.0, 8.0)), ('verdict', (8.0, 9.0))]
    """
    now, end = whole
    parts, between = [], BOOT
    for asked, answered in replies:
        parts += [(between, (now, asked)), (REPLY, (asked, answered))]
        now, between = answered, ENVIRONMENT
    judged = max(now, end - verdict_seconds)
    parts += [(between, (now, judged)), (VERDICT, (judged, end))]
    return [(name, (start, until)) for name, (start, until) in parts if until > start]
