"""The episodes in progress on the run's timeline: each has a lane, and its parts. Those that are
judged elsewhere leave theirs, and have one of a reward worker for their verdict."""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections.abc import Sequence

from ale_jax.monitor.text import one_line
from ale_jax.monitor.timeline import (
    BOOT,
    ENVIRONMENT,
    EPISODES,
    REPLY,
    REWARD_WORKERS,
    VERDICT,
    Lane,
    Span,
    Timeline,
)
from ale_jax.records import Episode, EpisodeKey

MAX_TITLE_CHARS = 80
Interval = tuple[float, float]  # in seconds of time.monotonic


@dataclasses.dataclass
class _Open:
    """lane: of its place. left: when that was free; None while it is not. judge: the lane of its
    reward worker, if it has one. verdicts: when reward workers worked; more than one of an episode
    whose verdict failed."""

    lane: Lane
    key: EpisodeKey
    start: float
    left: float | None = None
    judge: tuple[Lane, float] | None = None
    verdicts: list[tuple[Lane, Interval]] = dataclasses.field(default_factory=list)


class _Free:
    """The lanes of a process of the timeline that nobody has."""

    def __init__(self, process: str):
        self._process, self._count = process, 0
        self._numbers: list[int] = []  # as a heap

    def take(self) -> Lane:
        """Returns the first one."""
        if not self._numbers:
            self._numbers.append(self._count)
            self._count += 1
        return Lane(self._process, heapq.heappop(self._numbers))

    def put(self, lane: Lane) -> None:
        heapq.heappush(self._numbers, lane.number)


class EpisodeLanes:
    """Records episodes when they end. Each takes the first lane that is free. One thread calls all
    methods."""

    def __init__(self, timeline: Timeline):
        self._timeline = timeline
        self._places, self._judges = _Free(EPISODES), _Free(REWARD_WORKERS)
        self._open: dict[str, _Open] = {}

    def begin(self, conversation: str, key: EpisodeKey) -> None:
        """Gives the episode a lane."""
        self._open[conversation] = _Open(self._places.take(), key, time.monotonic())

    def leave(self, conversation: str) -> None:
        """Says that the episode's place is free, and its verdict comes later."""
        episode = self._open[conversation]
        episode.left = time.monotonic()
        self._places.put(episode.lane)

    def begin_verdict(self, conversation: str) -> None:
        """Gives the verdict a lane."""
        self._open[conversation].judge = self._judges.take(), time.monotonic()

    def end_verdict(self, conversation: str) -> None:
        """Takes the lane of the verdict back, if it has one."""
        episode = self._open[conversation]
        if episode.judge:
            lane, begun = episode.judge
            self._judges.put(lane)
            episode.judge = None
            episode.verdicts.append((lane, (begun, time.monotonic())))

    def end(self, conversation: str, replies: Sequence[Interval], episode: Episode | None) -> None:
        """Records an episode. replies: when it waited for them. episode: None of an attempt without
        a result."""
        was, now = self._open.pop(conversation), time.monotonic()
        key, task = was.key, was.key.task
        status = episode.status.value if episode else "no result"
        told: dict[str, str | int] = {"phase": key.phase, "status": status}
        told |= {"group": key.group, "member": key.member}
        title = one_line(f"{task.family} {task.item}", MAX_TITLE_CHARS)
        if was.left is None:
            self._places.put(was.lane)
        spans = [Span(lane, VERDICT, *interval, told) for lane, interval in was.verdicts]
        whole = was.start, now if was.left is None else was.left
        in_place = episode.verifier_seconds if episode and was.left is None else 0.0
        parts = episode_parts(whole, replies, in_place)
        spans.append(Span(was.lane, title, *whole, told))
        spans.extend(Span(was.lane, name, *interval) for name, interval in parts)
        self._timeline.write(spans)


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
