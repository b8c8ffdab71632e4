"""Bounded staleness: how far ahead of the learner the rollouts may run.

alpha, the asynchronous ratio, is a real number >= 0; 0 is synchronous. A step trains on P groups
of trajectories; `version` counts the published steps. Two mechanisms, one before the work and one
at its use (docs/staleness.md has the proofs):

1. Permits. A group is admitted only while
       in flight + waiting + trained < (version + 1) P + headroom,    headroom = floor(alpha P),
   so after every event   in flight + waiting + trained <= floor((alpha + version + 1) P).
   Proof: only `admit` raises the left side, under the lock and only below the bound; only `publish`
   moves the right side, upwards. Groups that are dropped leave the left side: their permit is back.
   No deadlock: each version brings P permits of its own, and what they admit is never stale in it.
2. Age. Permits alone cannot stop one slow group from coming back late. So a group's age, counted
   from the version at its first sampled token, is judged once more when it is used, and a group
   older than `max_age` is dropped, counted, and never trained on.
"""

from __future__ import annotations

import collections
import enum
import math
import threading


def age(now: int, start_version: int) -> int:
    """How many versions ago something started."""
    return now - start_version


class Drop(enum.StrEnum):
    """Why a group left without being trained on."""

    FAILED = "failed"  # not one member with a valid reward
    STALE = "stale"  # too old when it was to be used


class StalenessGate:
    """Counts permits. Every admitted group ends exactly once: trained, or dropped.

    A group is known by its index. in flight -complete-> waiting -train-> trained; `drop` is legal
    from in flight and waiting. Thread-safe. A call that does not fit the group's state is a bug in
    the caller and fails an assertion.

    alpha: staleness in versions; it acts in units of 1/P. groups_per_step: P.
    version: of the weights being served; a run that resumes has trained P groups for each.
    """

    def __init__(self, alpha: float, groups_per_step: int, version: int = 0):
        if not (alpha >= 0 and math.isfinite(alpha)):
            raise ValueError(f"alpha {alpha} must be a finite number >= 0: 0 is synchronous")
        if groups_per_step < 1:
            raise ValueError(f"groups_per_step {groups_per_step} must be at least 1")
        # The small term: 0.57 * 100 is 56.99999999999999 in binary.
        self.headroom = math.floor(alpha * groups_per_step + 1e-9)
        self.groups_per_step = groups_per_step
        self._version = version
        self._trained = version * groups_per_step
        self._in_flight: set[int] = set()
        self._waiting: set[int] = set()
        self._dropped: collections.Counter[Drop] = collections.Counter()
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        return self._version

    @property
    def capacity(self) -> int:
        """Most groups that may have been accepted by now: floor((alpha + version + 1) P)."""
        return (self._version + 1) * self.groups_per_step + self.headroom

    @property
    def accepted(self) -> int:
        """In flight + waiting + trained."""
        with self._changed:
            return self._accepted()

    def _accepted(self) -> int:
        return len(self._in_flight) + len(self._waiting) + self._trained

    @property
    def max_age(self) -> int:
        """Nothing older is trained on: ceil(headroom / P), which is alpha when alpha is whole."""
        return -(-self.headroom // self.groups_per_step)

    @property
    def oldest_per_batch(self) -> int:
        """Groups of age `max_age` that one batch may hold, so that its mean age is <= alpha."""
        return self.headroom - (self.max_age - 1) * self.groups_per_step

    def too_old(self, start_version: int) -> bool:
        """True where a group started so long ago that it will not be trained on any more."""
        return age(self._version, start_version) > self.max_age

    def admit(self, group: int, timeout: float = 0.0) -> bool:
        """Takes a permit for `group`, waiting up to `timeout` seconds for one. False: none came."""
        with self._changed:
            assert group not in self._in_flight | self._waiting, f"group {group} is out already"
            if not self._changed.wait_for(lambda: self._accepted() < self.capacity, timeout):
                return False
            self._in_flight.add(group)
            return True

    def has_permit(self) -> bool:
        """True while `admit` would succeed at once."""
        with self._changed:
            return self._accepted() < self.capacity

    def is_played_out(self) -> bool:
        """True while no permit is left and nothing is in flight: rollouts can run ahead no more."""
        with self._changed:
            return not self._in_flight and self._accepted() == self.capacity

    def in_flight(self, group: int) -> bool:
        """True from `admit` until all members are back."""
        with self._changed:
            return group in self._in_flight

    def complete(self, group: int) -> None:
        """All members are back. The group keeps its permit and waits for its use."""
        with self._changed:
            assert group in self._in_flight, f"group {group} is not in flight"
            self._in_flight.remove(group)
            self._waiting.add(group)

    def train(self, group: int) -> None:
        """The group is used. Its permit is spent for good: `publish` brings new ones."""
        with self._changed:
            assert group in self._waiting, f"group {group} is not waiting"
            self._waiting.remove(group)
            self._trained += 1

    def drop(self, group: int, reason: Drop) -> None:
        """The group leaves untrained and its permit returns."""
        with self._changed:
            home = self._in_flight if group in self._in_flight else self._waiting
            assert group in home, f"group {group} is neither in flight nor waiting"
            home.remove(group)
            self._dropped[reason] += 1
            self._changed.notify_all()

    def publish(self, version: int) -> None:
        """P permits are freed. To be called when the rollouts sample from weights `version`."""
        with self._changed:
            assert version == self._version + 1, (version, self._version)
            self._version = version
            self._changed.notify_all()

    def outstanding(self) -> list[int]:
        """Indices of the groups accepted and not yet trained on, ascending.

        A checkpoint stores them: a resumed run plays exactly these again, so that no task is
        skipped and none is trained on twice. Synchronous: empty between two steps.
        """
        with self._changed:
            return sorted(self._in_flight | self._waiting)

    def counts(self) -> dict[str, int]:
        """For the metrics: groups in flight, waiting, trained, and dropped by reason."""
        with self._changed:
            dropped = {f"dropped_{reason}": self._dropped[reason] for reason in Drop}
            return {
                "in_flight": len(self._in_flight),
                "waiting": len(self._waiting),
                "trained": self._trained,
                **dropped,
            }
