"""Why learner and engines waited: the idle intervals of a timeline, each with its cause."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ale_jax.monitor.timeline import (
    BEGUN,
    BOOT,
    ENGINES,
    ENVIRONMENT,
    EPISODES,
    EVALUATION,
    LEARNER,
    LENT,
    PUBLISH,
    REPLY,
    REPORT,
    REWARD_WORKERS,
    SAMPLING,
    SAVE,
    START,
    UPDATE,
    VERDICT,
    WAITING,
    Lane,
    Span,
)

NO_EPISODE = "no episode"
# What episodes do. If they do several things at once, the first of these is waited for.
PARTS = (REPLY, ENVIRONMENT, BOOT, VERDICT)
WORK = (UPDATE, SAVE, PUBLISH, REPORT)  # of the learner's thread
CAUSES = {
    REPLY: "of a learner: for replies; of an engine: the gateway or another engine is at work",
    ENVIRONMENT: "episodes act in their worlds, and none waits for a reply",
    BOOT: "sandboxes and worlds are being started, and no episode is further",
    VERDICT: "outcomes are being judged, and episodes do nothing else",
    UPDATE: "no episode may begin before the learner has made the step",
    SAVE: "the same, while the step is being saved",
    PUBLISH: "the same, while the weights are being published",
    REPORT: "the same, while the step is being reported",
    EVALUATION: "the learner waits for an evaluation",
    NO_EPISODE: "none is in progress: attempts back off, or there is no place or worker",
}

SHOWN = 0.05  # percent; less is left out


class Bubble(NamedTuple):
    """A time in which a learner or an engine was idle. start, end: in seconds since the epoch."""

    lane: Lane
    cause: str
    start: float
    end: float


class Total(NamedTuple):
    """The bubbles of one cause. learner, engine: their share of the time, in percent, of engines
    the mean."""

    cause: str
    learner: float
    engine: float

    @property
    def meaning(self) -> str:
        return CAUSES[self.cause]


class Totals(NamedTuple):
    """The bubbles of all causes, the longest first. seconds: in which they were looked for: from
    the start of the first evaluation or step to the end of the last one."""

    seconds: float
    rows: tuple[Total, ...]


def processes_of(spans: Sequence[Span]) -> list[list[Span]]:
    """Returns the spans by the process of the run that recorded them: it may have been resumed."""
    found: list[list[Span]] = [[]]
    for span in spans:
        if span.name == BEGUN and span.lane.process == LEARNER:
            found.append([])
        else:
            found[-1].append(span)
    return [each for each in found if each]


def laps_of(spans: Sequence[Span]) -> list[Span]:
    """Returns what the learner's thread did once the run was ready, in order."""
    laps = (span for span in spans if span.lane.process == LEARNER and span.name != START)
    return sorted(laps, key=lambda lap: lap.start)


def find_bubbles(spans: Sequence[Span]) -> list[Bubble]:
    """Returns the bubbles of one process of a run, between its first and its last lap."""
    found: list[Bubble] = []
    open_ones: dict[Lane, Bubble] = {}
    for start, end, idle in _idle(spans):
        for lane in [each for each in open_ones if idle.get(each) != open_ones[each].cause]:
            found.append(open_ones.pop(lane))
        for lane, cause in idle.items():
            held = open_ones.get(lane)
            open_ones[lane] = Bubble(lane, cause, held.start if held else start, end)
    return found + list(open_ones.values())


def sum_bubbles(spans: Sequence[Span]) -> Totals:
    """Returns the totals over a whole timeline."""
    seconds, engines = 0.0, set()
    learner, engine = dict.fromkeys(CAUSES, 0.0), dict.fromkeys(CAUSES, 0.0)
    for own in processes_of(spans):
        engines |= _engines(own)
        if laps := laps_of(own):
            seconds += laps[-1].end - laps[0].start
        for bubble in find_bubbles(own):
            total = learner if bubble.lane.process == LEARNER else engine
            total[bubble.cause] += bubble.end - bubble.start
    causes = sorted(CAUSES, key=lambda cause: -learner[cause] - engine[cause])
    percent = 100 / seconds if seconds else 0.0
    of_engine = percent / len(engines) if engines else 0.0
    rows = (Total(each, percent * learner[each], of_engine * engine[each]) for each in causes)
    return Totals(seconds, tuple(row for row in rows if row.learner + row.engine >= SHOWN))


def _idle(spans: Sequence[Span]) -> Iterator[tuple[float, float, dict[Lane, str]]]:
    """Yields intervals that follow one another, and for each the lanes that are idle, with why."""
    laps, engines = laps_of(spans), _engines(spans)
    if not laps:
        return
    changes = [(at, place, by) for span in spans for at, place, by in _changes(span)]
    changes += [(laps[0].start, "", 0), (laps[-1].end, "", 0)]
    active: collections.Counter[Lane | str] = collections.Counter()
    before = laps[0].start
    for at, what, by in sorted(changes, key=lambda change: change[0]):
        now = min(at, laps[-1].end)
        if now > before:
            yield before, now, _causes(active, engines)
            before = now
        active[what] += by


def _changes(span: Span) -> Iterator[tuple[float, Lane | str, int]]:
    process, name = span.lane.process, span.name
    if process == ENGINES and name in (SAMPLING, LENT):
        what: Lane | str = span.lane
    elif (process in (EPISODES, REWARD_WORKERS) and name in PARTS) or (
        process == LEARNER and name != START
    ):
        what = name
    else:
        return
    yield span.start, what, 1
    yield span.end, what, -1


def _causes(active: collections.Counter[Lane | str], engines: set[Lane]) -> dict[Lane, str]:
    part = next((name for name in PARTS if active[name]), "")
    work = next((name for name in WORK if active[name]), "")
    idle = {lane: part or work or NO_EPISODE for lane in engines if not active[lane]}
    if active[EVALUATION]:
        idle[Lane(LEARNER)] = EVALUATION
    elif active[WAITING]:
        idle[Lane(LEARNER)] = part or NO_EPISODE
    return idle


def _engines(spans: Sequence[Span]) -> set[Lane]:
    return {span.lane for span in spans if span.lane.process == ENGINES}
