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
   at that version. With reuse, uses are counted instead of groups. Of several domains each has
   permits of its own, as many as it has places among these, so that each step can have its ratios.
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

from ale_jax.data.quotas import ONE_DOMAIN, Quotas


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
    gate's. number: of groups of its domain admitted before it at that version, since then.
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
    quotas: the domains of the steps' places. A group takes a place of its own domain only.
    redundant: groups that are admitted beyond the bound, which changes no age.

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

    def __init__(
        self,
        alpha: float,
        groups_per_step: int,
        version: int = 0,
        max_uses: int = 1,
        quotas: Quotas = ONE_DOMAIN,
        redundant: int = 0,
    ):
        if not (alpha >= 0 and math.isfinite(alpha)):
            raise ValueError(f"alpha {alpha} must be a finite number >= 0: 0 is synchronous")
        for name, value in (("groups_per_step", groups_per_step), ("max_uses", max_uses)):
            if value < 1:
                raise ValueError(f"{name} {value} must be at least 1")
        # The small term is for rounding: 0.57 * 100 is 56.99999999999999 in floating point.
        self.headroom = math.floor(alpha * groups_per_step + 1e-9)
        self.groups_per_step, self.max_uses, self.quotas = groups_per_step, max_uses, quotas
        self.redundant, self._version = redundant, version
        self._trained = version * groups_per_step
        self._used = [quotas.before(domain, self._trained) for domain in quotas.domains]
        self._admitted = 0
        self._admitted_now = collections.Counter[int]()  # at this version, by domain
        self._in_flight: dict[int, Admission] = {}
        self._waiting: dict[int, Admission] = {}
        self._unused = collections.Counter[int]()  # in flight or waiting, by domain
        self._kept: dict[int, int] = {}  # group -> uses that are left
        self._dropped: collections.Counter[Drop] = collections.Counter()
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        return self._version

    @property
    def capacity(self) -> int:
        """Upper bound of `accepted` at this version: floor((alpha + version + 1) P), and the
        redundant ones."""
        return (self._version + 1) * self.groups_per_step + self.headroom + self.redundant

    @property
    def accepted(self) -> int:
        """The number of groups in flight, waiting and trained; with reuse, of their uses: those
        that were made, and those that may be."""
        with self._changed:
            return sum(map(self._accepted, self.quotas.domains))

    def _accepted(self, domain: int) -> int:
        unused, kept = self._present(domain)
        return self.max_uses * unused + sum(kept) + self._used[domain]

    def _present(self, domain: int) -> tuple[int, list[int]]:
        """Counts a domain's groups in flight and waiting; and the uses that are left of others."""
        of = self.quotas.domain
        kept = [left for group, left in self._kept.items() if of(group) == domain]
        return self._unused[domain], kept

    def _has_permit(self, domain: int) -> bool:
        before = self.quotas.before
        if age(self._next_step(), self._version) > self.max_age:
            return False  # what begins now would be too old for the next step
        if self._accepted(domain) + self.max_uses <= before(domain, self.capacity):
            return True
        # With reuse, the uses of a few groups may fill the bound. A step needs different ones.
        unused, kept = self._present(domain)
        end = (self._version + 1) * self.groups_per_step
        return unused + len(kept) + self._used[domain] < before(domain, end)

    def _next_domain(self) -> int | None:
        open_domains = filter(self._has_permit, self.quotas.domains)
        first = lambda domain: self.quotas.place(domain, self._accepted(domain))  # noqa: E731
        return min(open_domains, key=first, default=None)

    @property
    def max_age(self) -> int:
        """The age up to which groups are trained on: ceil(headroom / P), which is alpha if alpha is
        whole."""
        return -(-self.headroom // self.groups_per_step)

    @property
    def _oldest_per_batch(self) -> int:
        return self.headroom - (self.max_age - 1) * self.groups_per_step

    def per_batch(self, domain: int) -> int:
        """Returns how many groups of a domain the next step has."""
        return self._places(domain, 0, self.groups_per_step)

    def oldest_per_batch(self, domain: int) -> int:
        """Returns how many of them may be of age `max_age`, so that the mean age of all is at most
        alpha."""
        return self._places(domain, 0, self._oldest_per_batch)

    def headroom_of(self, domain: int) -> int:
        """Returns how many groups of a domain may have been admitted ahead of this version."""
        return self._places(domain, 0, self.headroom)

    def permits_of(self, domain: int, version: int) -> int:
        """Returns how many permits a version brought to a domain."""
        first = version * self.groups_per_step + self.headroom
        return self.quotas.between(domain, first, first + self.groups_per_step)

    def _places(self, domain: int, first: int, end: int) -> int:
        """Counts places of a domain, which are numbered from the next step's first one."""
        start = self._version * self.groups_per_step
        return self.quotas.between(domain, start + first, start + end)

    @property
    def next_step(self) -> int:
        """The version at which the next groups are taken: that of the weights, until a step of this
        version has taken its own."""
        with self._changed:
            return self._next_step()

    def _next_step(self) -> int:
        return self._version + (sum(self._used) >= (self._version + 1) * self.groups_per_step)

    def too_old(self, start_version: int) -> bool:
        """Tells whether a group of this start is too old for the next step."""
        return age(self.next_step, start_version) > self.max_age

    def is_late(self, domain: int, begun: int, number: int) -> bool:
        """Tells whether a group in flight should be complete before the next step, because later
        ones may not have room for it in time.

        begun: version at which it was admitted, or an older one that sampled a token of it.
        number: how many groups of its domain in flight are as old or older, with this one.
        """
        later = begun + self.max_age - self._version  # steps after the next that may still use it
        end = later * self.groups_per_step + self._oldest_per_batch
        return number > self._places(domain, self.groups_per_step, end)

    def admit(self, group: int, timeout: float = 0.0) -> bool:
        """Takes a permit for `group`, waiting up to `timeout` seconds; False if none came."""
        domain = self.quotas.domain(group)
        with self._changed:
            is_out = group in self._in_flight or group in self._waiting
            assert not is_out, f"{group} is out already"
            if not self._changed.wait_for(lambda: self._has_permit(domain), timeout):
                return False
            number = self._admitted_now[domain]
            self._in_flight[group] = Admission(self._admitted, self._version, number)
            self._admitted += 1
            self._admitted_now[domain] += 1
            self._unused[domain] += 1
            return True

    def next_domain(self) -> int | None:
        """Returns the domain of which `admit` would take a group at once: of several, the one whose
        free place comes first; None if there is no permit."""
        with self._changed:
            return self._next_domain()

    def is_played_out(self) -> bool:
        """Tells whether no permit is left and nothing is in flight, so that rollouts can run no
        further."""
        with self._changed:
            return not self._in_flight and self._next_domain() is None

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
            domain = self.quotas.domain(group)
            if self._waiting.pop(group, None) is not None:
                self._trained += 1
                self._unused[domain] -= 1
            self._used[domain] += 1
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
            self._unused[self.quotas.domain(group)] -= 1
            self._dropped[reason] += 1
            self._changed.notify_all()

    def publish(self, version: int) -> None:
        """Adds P permits. To be called when the rollouts sample from weights `version`."""
        with self._changed:
            assert version == self._version + 1, (version, self._version)
            self._version = version
            self._admitted_now.clear()
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
