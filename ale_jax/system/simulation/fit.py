"""What the times of runs say of their episodes and updates, as a simulation needs it."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ale_jax.monitor.times import AttemptTimes, Times
from ale_jax.records import EpisodeKey
from ale_jax.status import STATUS_RULES, Status
from ale_jax.system.simulation.engines import Engines
from ale_jax.system.simulation.observed import Level, RunPart, ended_within, playing, tells
from ale_jax.system.simulation.run import Draw
from ale_jax.system.simulation.updates import PROPORTIONAL, SLOWEST, Scaling, updates_of
from ale_jax.system.simulation.world import ALONE, Course, Crowding

ROUNDS = 5  # after which what is expected of an attempt no longer changes
CUT_SHARE = 0.01  # of attempts that are cancelled, which is not worth a word
LEAST_S = 1e-3  # an attempt that is over sooner counts as one of a millisecond

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Costs:
    """What episodes and updates take, alone. course: draws how an attempt goes. update_seconds,
    pause_seconds: as in `Setup`, of `learners` devices; 0 devices if it is unknown how many.
    dispatch: as of `Engines`; None if it was not given. most_playing: episodes in progress that are
    the basis of `crowding`, and most_of_engine those of one; 0 if nothing was measured.
    tells_places: whether they are the basis of others. unknown: what the times do not tell, in
    sentences."""

    course: Draw
    update_seconds: float
    pause_seconds: float
    crowding: Crowding = ALONE
    learners: int = 0
    scaling: Scaling = PROPORTIONAL
    dispatch: float | None = None
    most_playing: int = 0
    most_of_engine: float = 0.0
    tells_places: bool = True
    unknown: tuple[str, ...] = ()


def fitted(parts: Sequence[RunPart], scaling: Scaling | None = None) -> Costs:
    """Returns what the steps of these runs took, and the attempts that ended in them.

    What each attempt would have taken alone is drawn for simulated ones, so that members of a
    group stay together. scaling: of updates, if it was given. ValueError if no attempt had a
    result, and as of `updates_of`.
    """
    rows = [_Rows.of(part) for part in parts]
    attempts = [each for row in rows for each in row.attempts]
    results = np.array([has_result(each) for each in attempts], dtype=bool)
    if not results.any():
        raise ValueError("no episode of these steps had a result: take a longer run")
    seconds = np.concatenate([row.seconds for row in rows])
    others, in_update = _beside(rows, seconds)
    # An attempt that is slow for reasons of its own is alone in the end, which tells nothing. So
    # others must also differ in equally long times from each beginning.
    equally_long = np.full_like(seconds, np.median(seconds[results]))
    fair = _beside(rows, equally_long)
    others_tell, update_tells = (
        tells(values[results]) and tells(same[results])
        for values, same in zip((others, in_update), fair, strict=True)
    )
    told = np.array([others_tell, update_tells], dtype=float)
    of_episodes, of_update = _slowdown(rows, results, told)
    updates = updates_of(parts, scaling)
    alone = seconds / (1.0 + of_episodes * others + of_update * in_update) / _waits(rows)
    groups = [(run, each.group) for run, row in enumerate(rows) for each in row.attempts]
    pauses = [step.pause for part in parts for step in part.steps]
    learner_tells = updates.by_episodes is not None
    return Costs(
        _Recorded.of(attempts, groups, _uncut(attempts, alone)),
        updates.seconds,
        float(np.mean(pauses)),
        Crowding(of_episodes, of_update, updates.by_episodes or 0.0),
        updates.learners,
        updates.scaling,
        most_playing=max(row.most for row in rows),
        most_of_engine=max(row.most / row.engines.number for row in rows),
        tells_places=others_tell,
        unknown=(*_unknown(others_tell, update_tells, learner_tells), *_cut(attempts)),
    )


def has_result(attempt: AttemptTimes) -> bool:
    """Returns whether the attempt was neither cancelled nor to be repeated."""
    return attempt.status != Status.CANCELLED and not STATUS_RULES[attempt.status].retry


def _uncut(attempts: Sequence[AttemptTimes], alone: Floats) -> Floats:
    """Returns the seconds of attempts, for those that were cancelled drawn from those with a result
    that took longer (Efron's redistribution to the right). Without them, all that is slow would be
    missing of a run that drops it."""
    known = np.sort([s for each, s in zip(attempts, alone, strict=True) if has_result(each)])
    draw, uncut = random.Random(0), alone.copy()
    for number, attempt in enumerate(attempts):
        if attempt.status == Status.CANCELLED:
            longer = known[np.searchsorted(known, alone[number], side="right") :]
            uncut[number] = draw.choice(longer) if len(longer) else alone[number]
    return uncut


def _cut(attempts: Sequence[AttemptTimes]) -> Iterator[str]:
    """Yields what is not known of those that were cancelled, if these are many."""
    share = sum(each.status == Status.CANCELLED for each in attempts) / len(attempts)
    if share > CUT_SHARE:
        yield (
            f"{share:.1%} of the attempts were cancelled: how long these would have taken is drawn "
            "from the slower ones that ended"
        )


def _unknown(episodes: bool, update: bool, learner: bool) -> list[str]:
    said = []
    if not episodes:
        said.append(
            "about equally many episodes were always in progress: how they slow each other down is "
            "taken as nothing"
        )
    if not update:
        said.append(
            "updates were always, or never, made beside episodes: how they slow these down is "
            "taken as nothing"
        )
    if not learner:
        said.append(
            "about equally many episodes were in progress in each update: how they slow it down is "
            "taken as nothing"
        )
    return said


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The attempts at episodes of training that ended in some steps of a run, when each began and
    how long it took, and how many attempts and updates were in progress at each moment. moved: of
    the attempts, those whose engine had those of lent ones, too. crowd: as of `Sides`, then."""

    attempts: list[AttemptTimes]
    begun: Floats
    seconds: Floats
    playing: Level
    updates: Level
    moved: Level
    crowd: float
    engines: Engines

    @classmethod
    def of(cls, part: RunPart) -> _Rows:
        times, steps, engines, crowd = part
        attempts = ended_within(times, steps)
        begun, seconds = (
            np.array([getattr(each, name) for each in attempts]) for name in ("begun", "seconds")
        )
        updates = Level((each.taken, each.published) for each in times.steps)
        seconds = np.maximum(seconds, LEAST_S)
        moved = Level(_while_lent(times))
        return cls(attempts, begun, seconds, playing(times), updates, moved, crowd, engines)

    @property
    def level(self) -> Floats:
        """How many attempts were in progress beside each, with itself."""
        return np.maximum(self.playing.mean(self.begun, self.begun + self.seconds), 1.0)

    @property
    def most(self) -> int:
        return round(float(np.percentile(self.level, 95))) if self.attempts else 0


def _while_lent(times: Times) -> Iterator[tuple[float, float]]:
    """Yields when attempts were in progress while devices were lent."""
    for step in times.steps:
        if step.lent:
            for each in times.attempts:
                begun, ended = max(each.begun, step.taken), min(each.ended, step.published)
                if begun < ended:
                    yield begun, ended


def _beside(rows: Sequence[_Rows], seconds: Floats) -> tuple[Floats, Floats]:
    """Returns the mean numbers of other attempts of the same engine, and of updates, in progress in
    the `seconds` after each attempt began."""
    found = []
    for row, lasts in zip(rows, np.split(seconds, _ends(rows)), strict=True):
        itself = np.minimum(row.seconds, lasts) / lasts
        ended = row.begun + lasts
        others = row.playing.mean(row.begun, ended) - itself
        others += (row.crowd - 1.0) * row.moved.mean(row.begun, ended)
        beside = (others + 1.0) / row.engines.number - 1.0
        found.append((np.maximum(beside, 0.0), row.updates.mean(row.begun, ended)))
    return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])


def _waits(rows: Sequence[_Rows]) -> Floats:
    """Returns how many times slower each attempt was because engines wait for one another's
    dispatches."""
    return np.array([row.engines.slower(round(each)) for row in rows for each in row.level])


def _ends(rows: Sequence[_Rows]) -> NDArray[np.int64]:
    return np.cumsum([len(row.attempts) for row in rows])[:-1]


def _slowdown(
    rows: Sequence[_Rows], results: NDArray[np.bool_], told: Floats
) -> tuple[float, float]:
    """Returns `Crowding.episodes` and `Crowding.update`.

    Alone, an attempt takes as long as `turns * a + tokens * b + c`, times a random factor: least
    squares of the logarithms. Those that happen to be slow end when most others have, so what is in
    progress beside an attempt is counted in the time that its size lets one expect, not in its own.

    results: which attempts had one. told: 0 for an effect that is not to be sought.
    """
    attempts = [each for row in rows for each in row.attempts]
    seconds = np.concatenate([row.seconds for row in rows])
    sizes = np.array([(each.turns, each.tokens, 1.0) for each in attempts])
    sizes *= seconds.mean() / np.maximum(sizes.mean(axis=0), LEAST_S)
    values, expected, waits = np.array([0.3, 0.3, 0.3, 0.1, 0.1]), seconds, _waits(rows)
    dispatched = seconds / waits
    for _ in range(ROUNDS):
        beside = np.array(_beside(rows, expected)) * told[:, None]
        values = _least_squares(sizes[results], beside[:, results], dispatched[results], values)
        expected = waits * _taken(values, sizes, beside)
    of_episodes, of_update = values[3:] * told
    return float(of_episodes), float(of_update)


def _taken(values: Floats, sizes: Floats, beside: Floats) -> Floats:
    """Returns the seconds of attempts. values: a, b, c, and the two effects."""
    return np.asarray((sizes @ values[:3]) * (1.0 + values[3:] @ beside))


def _least_squares(sizes: Floats, beside: Floats, seconds: Floats, start: Floats) -> Floats:
    least, most = [0.0, 0.0, 1e-6, 0.0, 0.0], [np.inf] * 3 + [SLOWEST, np.inf]

    def wrong(values: Floats) -> Floats:
        return np.asarray(np.log(_taken(values, sizes, beside) / seconds))

    # Outliers, such as attempts in a slow sandbox, count less than their squares.
    found = least_squares(wrong, start, bounds=(least, most), loss="soft_l1")
    return np.asarray(found.x)


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """Draws the courses of attempts from recorded ones. groups: the courses of the members that had
    a result, or would have had one. failed: those that were to be repeated, which are a share
    `failing` of all."""

    groups: tuple[tuple[Course, ...], ...]
    failed: tuple[Course, ...]
    failing: float

    @classmethod
    def of(
        cls, attempts: Sequence[AttemptTimes], groups: Sequence[tuple[int, int]], alone: Floats
    ) -> _Recorded:
        """groups: (run, group) of each attempt. alone: its seconds."""
        by_group: dict[tuple[int, int], list[Course]] = defaultdict(list)
        failed: list[Course] = []
        for attempt, group, seconds in zip(attempts, groups, alone, strict=True):
            rule = STATUS_RULES[attempt.status]
            status = Status.FINISHED if attempt.status == Status.CANCELLED else attempt.status
            is_valid = STATUS_RULES[status].reward_valid
            reward = 1.0 if is_valid else None
            course = Course(float(seconds), status, reward, attempt.verdict)
            (failed if rule.retry else by_group[group]).append(course)
        return cls(tuple(map(tuple, by_group.values())), tuple(failed), len(failed) / len(attempts))

    def __call__(self, key: EpisodeKey, chance: random.Random) -> Course:
        if chance.random() < self.failing:
            return chance.choice(self.failed)
        # All members of a simulated group are members of one recorded group.
        members = random.Random(key.group).choice(self.groups)
        return members[key.member % len(members)]
