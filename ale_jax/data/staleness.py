"""Bounded staleness: how far ahead of the learner the rollouts may run.

alpha, the asynchronous ratio, is a real number >= 0; 0 is synchronous. A step trains on P groups
of trajectories; `version` counts the published steps. There are two mechanisms, one before a group
is played and one when it is used (docs/staleness.md has the proofs):

1. Permits. A group is admitted only while
       in flight + waiting + trained < (version + 1) P + headroom,    headroom = floor(alpha P),
   so after every event   in flight + waiting + trained <= floor((alpha + version + 1) P).
   Proof: only `admit` raises the left side, under the lock and only below the bound; only `publish`
   changes the right side, upwards. Dropped groups leave the left side and return their permit.
   No deadlock: each version brings P new permits, and the groups that they admit are never stale
   at that version. With reuse, uses are counted instead of groups.
2. Age. Permits alone cannot stop one slow group from coming back late. Therefore a group's age,
   counted from the version at its first sampled token, is checked again when the group is used.
   Either a step waits for the groups in flight that would be too old for the next one, so that
   every group is trained on in time, or such a group is dropped, counted, and never trained on:
   while it is played, as soon as a publish makes it too old, and at the latest when it would be
   used.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import threading


def age(now: int, start_version: int) -> int:
    """Counts the versions since something started."""
    return now - start_version


class Drop(enum.StrEnum):
    """Why a group left without being trained on."""

    FAILED = "failed"  # no member has a valid reward
    STALE = "stale"  # too old to be trained on
    EQUAL = "equal"  # all outcomes are equal, and `rl.dynamic_sampling` replaces it


@dataclasses.dataclass(frozen=True)
class Admission:
    """When a group was admitted.

    order: number of groups admitted before it, since the run was started or resumed. version: the
    gate's. number: of groups admitted before it at that version, since then.
    """

    order: int
    version: int
    number: int = 0


class StalenessGate:
    """The permits of a run. Every admitted group ends exactly once: trained, or dropped.

    A group is identified by its index. in flight -complete-> waiting -train-> trained; `drop` is
    allowed from in flight and waiting. With reuse, a trained group is kept until `train` has used
    it `max_uses` times, or `release`. Thread-safe. A call that does not fit the group's state is a
    bug in the caller and fails an assertion.

    alpha: staleness in versions, rounded down to a multiple of 1/P. groups_per_step: P.
    version: of the weights being served; a resumed run has used P groups for each version.

    With steps of two groups and alpha 1/2, the rollouts may be one group ahead:

        >>> gate = StalenessGate(alpha=0.5, groups_per_step=2)
        >>> [gate.admit(group) for group in range(4)]
        [True, True, True, False]
        >>> gate.publish(version=1)  # two permits more
        >>> [gate.admit(group) for group in range(3, 6)]
        [True, True, False]
        >>> gate.counts()["in_flight"], gate.accepted, gate.capacity
        (5, 5, 5)
    """

    def __init__(self, alpha: float, groups_per_step: int, version: int = 0, max_uses: int = 1):
        if not (alpha >= 0 and math.isfinite(alpha)):
            raise ValueError(f"alpha {alpha} must be a finite number >= 0: 0 is synchronous")
        for name, value in (("groups_per_step", groups_per_step), ("max_uses", max_uses)):
            if value < 1:
                raise ValueError(f"{name} {value} must be at least 1")
        # The small term is for rounding: 0.57 * 100 is 56.99999999999999 in floating point.
        self.headroom = math.floor(alpha * groups_per_step + 1e-9)
        self.groups_per_step, self.max_uses = groups_per_step, max_uses
        self._version = version
        self._trained = self._used = version * groups_per_step  # groups; uses
        self._admitted = self._admitted_before = 0  # before: this version
        self._in_flight: dict[int, Admission] = {}
        self._waiting: dict[int, Admission] = {}
        self._kept: dict[int, int] = {}  # group -> uses that are left
        self._dropped: collections.Counter[Drop] = collections.Counter()
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        return self._version

    @property
    def capacity(self) -> int:
        """Upper bound of `accepted` at this version: floor((alpha + version + 1) P)."""
        return (self._version + 1) * self.groups_per_step + self.headroom

    @property
    def accepted(self) -> int:
        """The number of groups in flight, waiting and trained; with reuse, of their uses: those
        that were made, and those that may be."""
        with self._changed:
            return self._accepted()

    def _accepted(self) -> int:
        unused = len(self._in_flight) + len(self._waiting)
        return self.max_uses * unused + sum(self._kept.values()) + self._used

    def _has_permit(self) -> bool:
        if self._accepted() + self.max_uses <= self.capacity:
            return True
        # With reuse, the uses of a few groups may fill the bound. A step needs P different ones.
        present = len(self._in_flight) + len(self._waiting) + len(self._kept)
        return present + self._used < (self._version + 1) * self.groups_per_step

    @property
    def max_age(self) -> int:
        """The age up to which groups are trained on: ceil(headroom / P), which is alpha if alpha is
        whole."""
        return -(-self.headroom // self.groups_per_step)

    @property
    def oldest_per_batch(self) -> int:
        """Groups of age `max_age` that one batch may hold, so that its mean age is <= alpha."""
        return self.headroom - (self.max_age - 1) * self.groups_per_step

    def too_old(self, start_version: int) -> bool:
        """Tells whether a group of this start is too old to be trained on."""
        return age(self._version, start_version) > self.max_age

    def is_late(self, begun: int, number: int) -> bool:
        """Tells whether a group in flight should be complete before the next step, because later
        ones may not have room for it in time.

        begun: version at which it was admitted, or an older one that sampled a token of it.
        number: how many groups in flight are as old or older, with this one.
        """
        later = begun + self.max_age - self._version  # steps after the next that may still use it
        room = (later - 1) * self.groups_per_step + self.oldest_per_batch if later > 0 else 0
        return number > room

    def admit(self, group: int, timeout: float = 0.0) -> bool:
        """Takes a permit for `group`, waiting up to `timeout` seconds; False if none came."""
        with self._changed:
            assert group not in self._in_flight.keys() | self._waiting, f"{group} is out already"
            if not self._changed.wait_for(self._has_permit, timeout):
                return False
            number = self._admitted - self._admitted_before
            self._in_flight[group] = Admission(self._admitted, self._version, number)
            self._admitted += 1
            return True

    def has_permit(self) -> bool:
        """Tells whether `admit` would succeed at once."""
        with self._changed:
            return self._has_permit()

    def is_played_out(self) -> bool:
        """Tells whether no permit is left and nothing is in flight, so that rollouts can run no
        further."""
        with self._changed:
            return not (self._in_flight or self._has_permit())

    def in_flight(self, group: int) -> bool:
        """Tells whether `group` is being played: from `admit` until all members are back."""
        with self._changed:
            return group in self._in_flight

    def versions_in_flight(self) -> dict[int, int]:
        """Returns the version at which each group in flight was admitted."""
        with self._changed:
            return {group: each.version for group, each in self._in_flight.items()}

    def complete(self, group: int) -> Admission:
        """Moves a group whose members are all back to those that wait. It keeps its permit."""
        with self._changed:
            assert group in self._in_flight, f"group {group} is not in flight"
            self._waiting[group] = self._in_flight.pop(group)
            return self._waiting[group]

    def train(self, group: int) -> None:
        """Counts a use of the group. Its permit is not returned; `publish` brings new permits."""
        with self._changed:
            assert group in self._waiting or group in self._kept, f"group {group} is not waiting"
            self._trained += self._waiting.pop(group, None) is not None
            self._used += 1
            if left := self._kept.pop(group, self.max_uses) - 1:
                self._kept[group] = left

    def release(self, group: int) -> None:
        """Ends a kept group, which is not used again."""
        with self._changed:
            assert group in self._kept, f"group {group} is not kept"
            del self._kept[group]
            self._changed.notify_all()

    def drop(self, group: int, reason: Drop) -> None:
        """Removes a group that is not trained on, and returns its permit."""
        with self._changed:
            home = self._in_flight if group in self._in_flight else self._waiting
            assert group in home, f"group {group} is neither in flight nor waiting"
            del home[group]
            self._dropped[reason] += 1
            self._changed.notify_all()

    def publish(self, version: int) -> None:
        """Adds P permits. To be called when the rollouts sample from weights `version`."""
        with self._changed:
            assert version == self._version + 1, (version, self._version)
            self._version, self._admitted_before = version, self._admitted
            self._changed.notify_all()

    def outstanding(self) -> list[int]:
        """Returns the indices of the groups in flight and waiting, ascending.

        A checkpoint stores them: a resumed run admits these first, so that no task is skipped and
        none is trained on twice. In a synchronous run it is empty between two steps.
        """
        with self._changed:
            return sorted(self._in_flight.keys() | self._waiting)

    def counts(self) -> dict[str, int]:
        """Counts the groups in flight, waiting, trained, and dropped by reason, for the metrics."""
        with self._changed:
            dropped = {f"dropped_{reason}": self._dropped[reason] for reason in Drop}
            return {
                "in_flight": len(self._in_flight),
                "waiting": len(self._waiting),
                "trained": self._trained,
                **dropped,
            }
