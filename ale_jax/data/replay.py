"""The buffer of finished groups of trajectories between the rollouts and the learner."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from ale_jax.data.staleness import Admission, Drop, StalenessGate, age
from ale_jax.records import Trajectory
from ale_jax.status import STATUS_RULES

# Of a domain's groups that are admitted at one version, so many steps' worth may be replaced for
# want of a signal. With the next step's worth, which is kept whatever it is, a step ends.
REPLACEABLE_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Group:
    """All attempts at one task, ordered by member, including those whose reward is not valid.

    admission: None if the group did not come through a gate. is_reused: whether an earlier step was
    trained on it.

    Of three members the last one's sandbox was lost:

        member   status          reward   start_version
        0        finished        1.0      4
        1        turn_limit      0.0      3
        2        sandbox_lost    None     2

    `valid` has the first two, `start_version` is 3, and the outcomes 1 and 0 differ: `has_signal`.
    """

    index: int
    members: tuple[Trajectory, ...]
    admission: Admission | None = None
    is_reused: bool = False

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The members whose reward is a valid judgement of the policy."""
        return tuple(filter(_is_valid, self.members))

    @functools.cached_property
    def start_version(self) -> int:
        """Version of the weights at the first token of any valid member. ValueError without one."""
        return min(t.start_version for t in self.valid)

    @property
    def has_signal(self) -> bool:
        """Whether the outcomes of its valid members differ."""
        return len({t.episode.reward for t in self.valid}) > 1


@dataclasses.dataclass(frozen=True)
class DroppedGroup:
    """A group that is not trained on. members: those that came back until then. family: of its
    task; empty until the feed, which knows it of every group, has added it."""

    index: int
    reason: Drop
    members: tuple[Trajectory, ...]
    family: str = ""

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The members whose reward is a valid judgement of the policy."""
        return tuple(filter(_is_valid, self.members))


@dataclasses.dataclass(frozen=True)
class GroupSize:
    """How many attempts are made at a task. A group is complete with the first `trained` valid
    ones; `redundant` more are begun, so that a slow or broken sandbox does not hold it back. A
    group whose attempts have all come back, with fewer valid ones, is complete, too."""

    trained: int
    redundant: int = 0

    def __post_init__(self) -> None:
        if self.trained < 1 or self.redundant < 0:
            raise ValueError(
                f"trained {self.trained} must be at least 1, redundant {self.redundant} at least 0"
            )

    @property
    def played(self) -> int:
        """The number of attempts that are begun."""
        return self.trained + self.redundant

    def is_reached(self, members: Iterable[Trajectory]) -> bool:
        """Tells whether a group is complete with the members that are back."""
        back, valid = 0, 0
        for member in members:
            back, valid = back + 1, valid + _is_valid(member)
        return back == self.played or valid == self.trained

    def kept(self, members: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
        """Returns as many of the members that are back as are trained on, the valid ones first: the
        shape of a step does not depend on what was lost."""
        valid_first = sorted(members, key=_is_valid, reverse=True)
        return tuple(sorted(valid_first[: self.trained], key=_number))


def _ignore(dropped: DroppedGroup) -> None:
    """Takes no notice, for those who do not ask for dropped groups."""


class ReplayBuffer:
    """Holds trajectories until their group is complete, and groups until they are used.

    It reports the end of each group to the gate, so that no permit is lost: a group without a valid
    member as failed, and a group that has become too old for its use as stale. Thread-safe.

    Each step has as many groups of every domain as `gate.per_batch` says, also if those of another
    one come back first.

    dynamic: a group without a signal is dropped as equal, so that the next one of its domain takes
        its place (dynamic sampling, DAPO, arXiv 2503.14476). Which groups may be dropped is decided
        by the order of their admission, so that without staleness a step's groups do not depend on
        which comes back first: of each domain, those of the first two steps' worth that have a
        signal, and all that follow, until there is one step's worth.

    A group is trained on `gate.max_uses` times, as long as it is fresh enough.

    waits: a step waits for the groups in flight that would be too old later. Then every group that
        has a valid member is trained on, however slow it is (docs/staleness.md).
    fill: a step waits until the rollouts are as far ahead as they may be, so that ages depend on
        alpha alone, and not on whether rollouts or learner are slower.
    on_drop: called with each group that leaves without being trained on, in the thread that notices
        it, before the permit returns. It must not call the buffer.
    """

    def __init__(
        self,
        gate: StalenessGate,
        size: GroupSize,
        fill: bool = False,
        on_drop: Callable[[DroppedGroup], None] = _ignore,
        dynamic: bool = False,
        waits: bool = False,
    ):
        self._gate = gate
        self._size = size
        self._fill = fill
        self._on_drop = on_drop
        self._dynamic = dynamic
        self._waits = waits
        self._partial: dict[int, dict[int, Trajectory]] = {}
        self._whole: dict[int, Group] = {}
        self._uses: dict[int, int] = {}
        self._judged_at = -1  # the step for which all complete groups are fresh
        self._changed = threading.Condition()

    def add(self, trajectory: Trajectory) -> bool:
        """Adds one member of an admitted group, whatever its status, and returns whether its group
        is complete without others that are still being played. None of these may be added any
        more; until then, every member is, exactly once."""
        key = trajectory.episode.key
        assert 0 <= key.member < self._size.played, key
        with self._changed:
            assert self._gate.in_flight(key.group), f"group {key.group} is not in flight"
            members = self._partial.setdefault(key.group, {})
            assert key.member not in members, f"{key} came back twice"
            members[key.member] = trajectory
            if not self._size.is_reached(members.values()):
                return False
            self._finish(key.group)
            self._changed.notify_all()
            return len(members) < self._size.played

    def _finish(self, index: int) -> None:
        members = self._size.kept(_in_order(self._partial.pop(index)))
        if not any(map(_is_valid, members)):
            self._drop(index, Drop.FAILED, members)
            return
        admission = self._gate.complete(index)
        group = Group(index, members, admission)
        if self._dynamic and not group.has_signal and self._is_replaceable(index, admission):
            self._drop(index, Drop.EQUAL, members)
            return
        self._whole[index] = group
        self._uses[index] = 0
        self._judged_at = -1

    def _is_replaceable(self, index: int, admission: Admission) -> bool:
        permits = self._gate.permits_of(self._domain(index), admission.version)
        return admission.number < REPLACEABLE_STEPS * permits

    def _domain(self, index: int) -> int:
        return self._gate.quotas.domain(index)

    def drop_overdue(self, started: Mapping[int, int]) -> list[int]:
        """Drops the groups in flight that would be too old when they are complete, and returns
        their indices. None of their members may be added any more.

        started: group -> the oldest start version of its episodes in progress.
        """
        with self._changed:
            overdue = [
                index
                for index in sorted(self._partial.keys() | started)
                if self._gate.in_flight(index) and self._is_overdue(index, started)
            ]
            for index in overdue:
                self._drop(index, Drop.STALE, _in_order(self._partial.pop(index, {})))
            return overdue

    def _is_overdue(self, index: int, started: Mapping[int, int]) -> bool:
        back = filter(_is_valid, self._partial.get(index, {}).values())
        starts = [started[index]] if index in started else []
        return any(map(self._gate.too_old, [*starts, *(t.start_version for t in back)]))

    def _drop(self, index: int, reason: Drop, members: tuple[Trajectory, ...]) -> None:
        self._on_drop(DroppedGroup(index, reason, members))
        self._gate.drop(index, reason)

    def take(self, timeout: float = 0.0) -> list[Group]:
        """Returns the groups of one step, ordered by index: of each domain the oldest ones that are
        fresh at the gate's version.

        Waits up to `timeout` seconds for them, with `waits` for those that would be too old later,
        and with `fill` for all groups that may be admitted; [] if they did not come. Call it when
        the step begins and not earlier, because ages are checked here. Stale groups are evicted.
        The mean age of the groups returned is at most alpha.
        """
        with self._changed:
            if not self._changed.wait_for(self._ready, timeout):
                return []
            return [self._use(index) for index in self._batch()]

    def _ready(self) -> bool:
        self._evict_stale()
        if len(self._whole) < self._gate.groups_per_step:
            return False
        if len(self._batch()) < self._gate.groups_per_step or (self._waits and self._is_any_late()):
            return False
        return not self._fill or self._gate.is_played_out()

    def _is_any_late(self) -> bool:
        """Tells whether a step should wait for a group in flight."""
        begun = self._gate.versions_in_flight()
        for index, members in self._partial.items():
            # In a resumed run, members that were played before it are older than their admission.
            back = (t.start_version for t in members.values() if _is_valid(t))
            begun[index] = min([begun[index], *back])
        for domain, indices in self._by_domain(begun).items():
            oldest_first = enumerate(sorted(begun[index] for index in indices), 1)
            if any(self._gate.is_late(domain, version, n) for n, version in oldest_first):
                return True
        return False

    def _batch(self) -> list[int]:
        """Indices of the next step's groups, as many as are available. Stale ones are evicted."""
        batch = []
        for domain, indices in self._by_domain(self._whole).items():
            oldest_first = sorted(indices, key=lambda index: (self._begun(index), index))
            batch += oldest_first[: self._gate.per_batch(domain)]
        return sorted(batch)

    def _by_domain(self, indices: Iterable[int]) -> dict[int, list[int]]:
        found = collections.defaultdict(list)
        for index in indices:
            found[self._domain(index)].append(index)
        return found

    def _begun(self, index: int) -> int:
        group = self._whole[index]
        assert group.admission is not None, "it came through the gate"
        return min(group.admission.version, group.start_version)

    def held(self) -> list[Trajectory]:
        """Returns all trajectories in the buffer, including incomplete groups, in the order of
        groups and members. They stay in it."""
        with self._changed:
            whole = [t for group in self._whole.values() for t in group.members]
            partial = [t for members in self._partial.values() for t in members.values()]
        # Not in the order of their arrival, on which sums over them would depend in the last digit.
        return sorted(whole + partial, key=lambda t: (t.episode.key.group, t.episode.key.member))

    def whole(self) -> list[int]:
        """Returns the indices of the complete groups, which wait for their first use or another
        one."""
        with self._changed:
            return list(self._whole)

    def _evict_stale(self) -> None:
        gate, oldest = self._gate, []
        if self._judged_at == gate.next_step:
            return
        self._judged_at = gate.next_step
        for index, group in sorted(self._whole.items()):
            if gate.too_old(group.start_version):
                self._evict(index)
            elif age(gate.version, group.start_version) == gate.max_age:
                oldest.append(index)
        for domain, indices in self._by_domain(oldest).items():
            least_used = sorted(indices, key=self._uses.__getitem__)
            for index in least_used[gate.oldest_per_batch(domain) :]:
                self._evict(index)  # for the next step it is too old in any case

    def _evict(self, index: int) -> None:
        group = self._whole.pop(index)
        if self._uses.pop(index):
            self._gate.release(index)
        else:
            self._drop(index, Drop.STALE, group.members)

    def _use(self, index: int) -> Group:
        self._gate.train(index)
        self._uses[index] += 1
        uses, group = self._uses[index], self._whole[index]
        if uses == self._gate.max_uses:
            del self._whole[index], self._uses[index]
        return dataclasses.replace(group, is_reused=uses > 1)


def _is_valid(trajectory: Trajectory) -> bool:
    return STATUS_RULES[trajectory.episode.status].reward_valid


def _number(trajectory: Trajectory) -> int:
    return trajectory.episode.key.member


def _in_order(members: Mapping[int, Trajectory]) -> tuple[Trajectory, ...]:
    return tuple(members[number] for number in sorted(members))
