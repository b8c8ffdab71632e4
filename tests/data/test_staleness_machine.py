"""Random lives of gate and buffer together, against a model that only counts."""

import math
from fractions import Fraction

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ale_jax.data.quotas import Quotas
from ale_jax.data.replay import GroupSize, ReplayBuffer
from ale_jax.data.staleness import StalenessGate
from ale_jax.status import STATUS_RULES, Status
from tests.data.make_trajectories import make_trajectory

GROUP_SIZE = 2


class StalenessMachine(RuleBasedStateMachine):
    @initialize(
        quarters=st.integers(0, 10),
        groups_per_step=st.integers(1, 5),
        max_uses=st.integers(1, 3),
        fill=st.booleans(),
        waits=st.booleans(),
        ratios=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        repeats=st.integers(1, 2),
        redundant=st.integers(0, 3),
        spare=st.integers(0, 2),
    )
    def begin(
        self, quarters, groups_per_step, max_uses, fill, waits, ratios, repeats, redundant, spare
    ):
        self.alpha = Fraction(quarters, 4)
        self.groups_per_step = groups_per_step
        self.max_uses = max_uses
        self.quotas = quotas = Quotas.of_ratios(ratios, repeats)
        self.redundant = redundant = 0 if fill or waits or max_uses > 1 else redundant
        self.gate = StalenessGate(
            float(self.alpha), groups_per_step, 0, max_uses, quotas, redundant
        )
        self.fill, self.waits = fill, waits
        self.size = GroupSize(GROUP_SIZE, spare)
        self.buffer = ReplayBuffer(self.gate, self.size, fill, waits=waits)
        self.next_groups = [quotas.first(domain, 0) for domain in quotas.domains]
        self.starts = {}  # (group, member) out there -> version at its first token, None before
        self.played = {}  # group -> [(start version, valid reward?)] of the members that are back
        self.uses = {}  # group -> times trained on
        self.aborted = set()

    def limit(self):
        bound = math.floor((self.alpha + self.gate.version + 1) * self.groups_per_step)
        return bound + self.redundant

    def in_flight(self):
        return {group for group, _ in self.starts}

    @rule()
    def admit(self):
        before, domain = self.gate.accepted, self.gate.next_domain()
        assert (domain is not None) == (before < self.limit()) or self.max_uses > 1
        if domain is None:
            assert not any(map(self.gate.admit, self.next_groups))
        else:
            group = self.admit_next(domain)
            self.starts |= {(group, m): None for m in range(self.size.played)}

    def admit_next(self, domain):
        group = self.next_groups[domain]
        assert self.gate.admit(group)
        self.played[group] = []
        self.next_groups[domain] = self.quotas.first(domain, group + 1)
        return group

    @precondition(lambda self: self.starts)
    @rule(data=st.data())
    def first_token(self, data):
        key = data.draw(st.sampled_from(sorted(self.starts)))
        if self.starts[key] is None:
            self.starts[key] = self.gate.version

    @precondition(lambda self: self.starts)
    @rule(data=st.data(), status=st.sampled_from(Status))
    def come_back(self, data, status):
        self.finish(data.draw(st.sampled_from(sorted(self.starts))), status)

    def finish(self, key, status):
        start = self.starts.pop(key)
        start = self.gate.version if start is None else start
        valid = STATUS_RULES[status].reward_valid
        self.played[key[0]].append((start, valid))
        reward = 1.0 if valid else None
        is_left = self.buffer.add(
            make_trajectory(*key, status=status, reward=reward, start_version=start)
        )
        others = [other for other in self.starts if other[0] == key[0]]
        enough = sum(valid for _, valid in self.played[key[0]]) == GROUP_SIZE
        assert is_left == (enough and bool(others))
        for other in others * is_left:
            del self.starts[other]

    def finish_all(self, wanted, status):
        for key in sorted(self.starts):
            if key in self.starts and wanted(key):  # its group may be complete by now
                self.finish(key, status)

    @rule()
    def train(self):
        full = self.gate.next_domain() is None and not self.in_flight()
        batch = self.buffer.take()
        if not batch:
            return
        assert full or not self.fill
        now, order = self.gate.version, [g.index for g in batch]
        assert order == sorted(set(order))
        first = now * self.groups_per_step
        places = range(first, first + self.groups_per_step)
        of = self.quotas.domain
        assert sorted(map(of, order)) == sorted(map(of, places)), "as a synchronous step has them"
        ages = []
        for index in order:
            assert index not in self.in_flight()
            ages.append(now - min(start for start, valid in self.played[index] if valid))
            self.uses[index] = self.uses.get(index, 0) + 1
            assert self.uses[index] <= self.max_uses
        assert max(ages) <= math.ceil(self.alpha)
        assert sum(ages) <= self.alpha * len(ages)
        assert self.gate.next_step == now + 1
        if self.gate.max_age == 0:
            assert self.gate.next_domain() is None, "what begins now is too old for the next step"
        self.abort_overdue()
        self.gate.publish(now + 1)
        before = set(self.aborted)
        self.abort_overdue()
        assert self.aborted == before, "what the publish makes too old has ended by then"

    def abort_overdue(self):
        """Ends the groups in flight that would be too old when they come back."""
        oldest = {}
        for (group, _), start in self.starts.items():
            if start is not None:
                oldest[group] = min(start, oldest.get(group, start))
        overdue = self.buffer.drop_overdue(oldest)
        # Alpha acts in steps of 1 / P.
        whole = math.ceil(
            Fraction(math.floor(self.alpha * self.groups_per_step), self.groups_per_step)
        )
        limit = self.gate.next_step - whole
        for group in self.in_flight():
            back = [start for start, valid in self.played[group] if valid]
            going_on = [oldest[group]] if group in oldest else []
            assert (group in overdue) == any(start < limit for start in back + going_on)
        self.aborted |= set(overdue)
        self.starts = {key: start for key, start in self.starts.items() if key[0] not in overdue}

    @precondition(lambda self: self.starts and not self.fill)
    @rule(data=st.data(), steps=st.integers(1, 4), first=st.sampled_from(Status))
    def one_group_is_slow(self, data, steps, first):
        """One member of it may be back. All others come back and are trained on meanwhile."""
        slow = data.draw(st.sampled_from(sorted(self.starts)))
        if self.starts[slow] is None and data.draw(st.booleans()):
            self.starts[slow] = self.gate.version
        self.finish_all(
            lambda key: key[0] == slow[0] and key != slow and data.draw(st.booleans()), first
        )
        for _ in range(steps):
            self.finish_all(lambda key: key[0] != slow[0], Status.FINISHED)
            self.fill_permits()
            self.train()

    @rule()
    def a_step_is_always_within_reach(self):
        """Let all that is out come back, fill the permits: then a step can be trained. A filled
        queue, reuse or redundant groups may need them filled once more, with those of groups that
        were stale by now, or have no place among the oldest of their domain."""
        self.finish_all(lambda key: True, Status.FINISHED)
        version = self.gate.version
        self.fill_permits()
        self.train()
        may_be_stale = self.fill or self.max_uses > 1 or self.redundant
        if may_be_stale and self.gate.version == version:
            self.fill_permits()
            self.train()
        assert self.gate.version == version + 1

    def fill_permits(self):
        while (domain := self.gate.next_domain()) is not None:
            group = self.admit_next(domain)
            self.starts |= {(group, m): None for m in range(self.size.played)}
            for member in range(GROUP_SIZE):
                self.finish((group, member), Status.FINISHED)

    @invariant()
    def accepted_is_bounded(self):
        if hasattr(self, "gate"):
            limit, of = self.limit(), self.quotas.domain
            if self.max_uses > 1:
                # P different groups are needed, even if all can be used again.
                rest = (self.max_uses - 1) * (self.groups_per_step + len(self.quotas.round))
                limit = max(limit, (self.gate.version + 1) * self.groups_per_step) + rest
                assert self.gate.accepted <= limit
            else:
                taken = [*self.gate.outstanding(), *self.uses]
                for domain in self.quotas.domains:
                    places = sum(of(place) == domain for place in range(limit))
                    assert sum(of(group) == domain for group in taken) <= places

    @invariant()
    def no_group_is_lost_or_counted_twice(self):
        if hasattr(self, "gate"):
            counts = self.gate.counts()
            assert sum(counts.values()) == len(self.played)
            assert counts["in_flight"] == len(self.in_flight())
            assert counts["trained"] == len(self.uses)
            dead = [
                g
                for g, members in self.played.items()
                if g not in self.in_flight() | self.aborted and not any(v for _, v in members)
            ]
            assert counts["dropped_failed"] == len(dead)
            assert counts["dropped_stale"] >= len(self.aborted)
            assert not (self.waits and counts["dropped_stale"]), "none is lost for being slow"


TestStalenessMachine = StalenessMachine.TestCase
TestStalenessMachine.settings = settings(
    max_examples=170,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
