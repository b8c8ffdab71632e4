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
from ale_jax.system.simulation.observed import Level, TimedStep, ended_within, playing
from ale_jax.system.simulation.run import Draw
from ale_jax.system.simulation.world import ALONE, Course, Crowding

TOLD = 0.1  # a number that varies by less than this share of its mean tells nothing of its effect
SURE = 2.0  # standard errors that an effect must have to be believed
# One place for all would make n episodes n times slower, and nothing is worse than that.
SLOWEST = 1.0
ROUNDS = 5  # after which what is expected of an attempt no longer changes
CUT_SHARE = 0.01  # of attempts that are cancelled, which is not worth a word
LEAST_S = 1e-3  # an attempt that is over sooner counts as one of a millisecond

Floats = NDArray[np.float64]
Part = tuple[Times, Sequence[TimedStep]]  # of a run


@dataclasses.dataclass(frozen=True)
class Costs:
    """What episodes and updates take, alone. course: draws how an attempt goes. update_seconds,
    pause_seconds: as in `Setup`. most_playing: episodes in progress that are the basis of
    `crowding`; 0 if nothing was measured. tells_places: whether they are the basis of others.
    unknown: what the times do not tell, in sentences."""

    course: Draw
    update_seconds: float
    pause_seconds: float
    crowding: Crowding = ALONE
    most_playing: int = 0
    tells_places: bool = True
    unknown: tuple[str, ...] = ()


def fitted(parts: Sequence[Part]) -> Costs:
    """Returns what the steps of these runs took, and the attempts that ended in them.

    What each attempt would have taken alone is drawn for simulated ones, so that members of a
    group stay together. ValueError if no attempt had a result.
    """
    rows = [_Rows.of(times, steps) for times, steps in parts]
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
        _tells(values[results]) and _tells(same[results])
        for values, same in zip((others, in_update), fair, strict=True)
    )
    told = np.array([others_tell, update_tells], dtype=float)
    of_episodes, of_update = _slowdown(rows, results, told)
    update_seconds, of_learner, learner_tells = _updates(parts)
    alone = seconds / (1.0 + of_episodes * others + of_update * in_update)
    groups = [(run, each.group) for run, row in enumerate(rows) for each in row.attempts]
    pauses = [step.pause for _, steps in parts for step in steps]
    return Costs(
        _Recorded.of(attempts, groups, _uncut(attempts, alone)),
        update_seconds,
        float(np.mean(pauses)),
        Crowding(of_episodes, of_update, of_learner),
        round(float(np.percentile(others, 95))) + 1,
        others_tell,
        (*_unknown(others_tell, update_tells, learner_tells), *_cut(attempts)),
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
    how long it took, and how many attempts and updates were in progress at each moment."""

    attempts: list[AttemptTimes]
    begun: Floats
    seconds: Floats
    playing: Level
    updates: Level

    @classmethod
    def of(cls, times: Times, steps: Sequence[TimedStep]) -> _Rows:
        attempts = ended_within(times, steps)
        begun, seconds = (
            np.array([getattr(each, name) for each in attempts]) for name in ("begun", "seconds")
        )
        updates = Level((each.taken, each.published) for each in times.steps)
        return cls(attempts, begun, np.maximum(seconds, LEAST_S), playing(times), updates)


def _beside(rows: Sequence[_Rows], seconds: Floats) -> tuple[Floats, Floats]:
    """Returns the mean numbers of other attempts, and of updates, in progress in the `seconds`
    after each attempt began."""
    found = []
    for row, lasts in zip(rows, np.split(seconds, _ends(rows)), strict=True):
        itself = np.minimum(row.seconds, lasts) / lasts
        ended = row.begun + lasts
        others = row.playing.mean(row.begun, ended) - itself
        found.append((np.maximum(others, 0.0), row.updates.mean(row.begun, ended)))
    return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])


def _ends(rows: Sequence[_Rows]) -> NDArray[np.int64]:
    return np.cumsum([len(row.attempts) for row in rows])[:-1]


def _tells(values: Floats) -> bool:
    """Returns whether an effect of these values can be told from a constant."""
    return bool(np.std(values) >= TOLD * max(float(np.mean(values)), TOLD))


def _slowdown(
    rows: Sequence[_Rows], results: NDArray[np.bool_], tells: Floats
) -> tuple[float, float]:
    """Returns `Crowding.episodes` and `Crowding.update`.

    Alone, an attempt takes as long as `turns * a + tokens * b + c`, times a random factor: least
    squares of the logarithms. Those that happen to be slow end when most others have, so what is in
    progress beside an attempt is counted in the time that its size lets one expect, not in its own.

    results: which attempts had one. tells: 0 for an effect that is not to be sought.
    """
    attempts = [each for row in rows for each in row.attempts]
    seconds = np.concatenate([row.seconds for row in rows])
    sizes = np.array([(each.turns, each.tokens, 1.0) for each in attempts])
    sizes *= seconds.mean() / np.maximum(sizes.mean(axis=0), LEAST_S)
    values, expected = np.array([0.3, 0.3, 0.3, 0.1, 0.1]), seconds
    for _ in range(ROUNDS):
        beside = np.array(_beside(rows, expected)) * tells[:, None]
        values = _least_squares(sizes[results], beside[:, results], seconds[results], values)
        expected = _taken(values, sizes, beside)
    of_episodes, of_update = values[3:] * tells
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


def _updates(parts: Sequence[Part]) -> tuple[float, float, bool]:
    """Returns the seconds of an update alone, on the learner's own devices, `Crowding.learner`, and
    whether it could be told."""
    taken, published = (
        [np.array([getattr(s.times, name) for s in steps]) for _, steps in parts]
        for name in ("taken", "published")
    )
    levels = [
        playing(times).mean(begun, ended)
        for (times, _), begun, ended in zip(parts, taken, published, strict=True)
    ]
    seconds = np.array([step.update_seconds for _, steps in parts for step in steps])
    number = np.concatenate(levels)
    mean, level = float(seconds.mean()), float(number.mean())
    # A line through two points has no error.
    if len(number) < 3 or not _tells(number):
        return mean, 0.0, False
    (slope, _), covariance = np.polyfit(number, seconds, deg=1, cov=True)
    if slope <= SURE * np.sqrt(covariance[0, 0]):
        return mean, 0.0, False
    # mean = alone * (1 + learner * level), and learner is at most SLOWEST.
    alone = max(mean - float(slope) * level, mean / (1.0 + SLOWEST * level))
    return alone, (mean / alone - 1.0) / level, True


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
