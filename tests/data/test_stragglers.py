"""Slow groups, which a step waits for so that none is lost, and slow domains."""

import collections
import itertools
import random
import threading
from dataclasses import dataclass

from ale_jax.data.quotas import Quotas
from ale_jax.data.replay import GroupSize, ReplayBuffer
from ale_jax.data.staleness import StalenessGate
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory
from tests.data.test_replay import indices, make, play

VERSIONS = 30  # of a life


def test_a_step_waits_for_a_group_that_would_be_too_old_for_the_next_one():
    gate, buffer = make(alpha=1, groups_per_step=1, waits=True)
    gate.admit(5)
    play(gate, buffer, 0)
    assert indices(buffer.take()) == [0], "the other one can be used at the next version"
    gate.publish(1)
    play(gate, buffer, 1)
    assert buffer.take() == []
    for member in range(2):
        buffer.add(make_trajectory(5, member, start_version=0))
    assert indices(buffer.take()) == [5]
    gate.publish(2)
    assert indices(buffer.take()) == [1] and gate.counts()["dropped_stale"] == 0


def test_a_step_does_not_wait_for_a_group_that_failed():
    gate, buffer = make(alpha=1, groups_per_step=1, waits=True)
    gate.admit(5)
    play(gate, buffer, 0)
    buffer.take()
    gate.publish(1)
    play(gate, buffer, 1)
    taken = []
    waiter = threading.Thread(target=lambda: taken.extend(buffer.take(timeout=60.0)))
    waiter.start()
    lost = {"status": Status.SANDBOX_LOST, "reward": None}
    for member in range(2):
        buffer.add(make_trajectory(5, member, start_version=0, **lost))
    waiter.join(20.0)
    assert indices(taken) == [1]


def test_a_step_waits_for_the_rest_of_a_group_that_was_begun_before_the_run_was_resumed():
    gate, buffer = make(alpha=1, groups_per_step=1, waits=True)
    gate.publish(1)
    gate.admit(5)
    buffer.add(make_trajectory(5, 0, start_version=0))  # from the journal
    play(gate, buffer, 6)
    assert buffer.take() == []
    buffer.add(make_trajectory(5, 1, start_version=1))
    assert indices(buffer.take()) == [5]


def test_with_a_larger_alpha_a_step_waits_before_too_many_are_old():
    """alpha 2, one group a step: of the three groups of version 0, two may be left for the steps
    at versions 1 and 2, but at version 1 only one."""
    gate, buffer = make(alpha=2, groups_per_step=1, waits=True)
    for group in (0, 1):
        gate.admit(group)
    play(gate, buffer, 2)
    assert indices(buffer.take()) == [2]
    gate.publish(1)
    play(gate, buffer, 3)
    assert buffer.take() == []
    for member in range(2):
        buffer.add(make_trajectory(1, member, start_version=0))
    assert indices(buffer.take()) == [1]


def test_in_no_life_is_a_group_lost_for_being_slow():
    stale = {waits: [_Life(seed, waits).stale() for seed in range(100)] for waits in (True, False)}
    assert not any(stale[True])
    assert sum(map(bool, stale[False])) > 40, "these lives would lose groups otherwise"


def test_a_step_waits_for_the_domain_that_is_slow():
    gate, buffer = make(alpha=1, groups_per_step=3, quotas=Quotas.of_ratios((2, 1)))
    for group in (0, 2, 3, 5):
        play(gate, buffer, group)
    assert buffer.take() == [] and gate.next_domain() == 1
    play(gate, buffer, 1)
    assert indices(buffer.take()) == [0, 1, 2]
    play(gate, buffer, 4)
    gate.publish(1)
    assert indices(buffer.take()) == [3, 4, 5]


def test_of_a_domain_with_too_many_old_groups_some_are_dropped():
    """alpha 1/2, of four places: at version 1 those of domain 0 may have two groups of version 0,
    and none of domain 1."""
    gate, buffer = make(alpha=0.5, groups_per_step=4, quotas=Quotas((0, 0, 1, 1)))
    for group in (0, 1, 2, 3, 4, 5):
        play(gate, buffer, group)
    assert gate.next_domain() is None and indices(buffer.take()) == [0, 1, 2, 3]
    gate.publish(1)
    for group in (6, 7):
        play(gate, buffer, group)
    assert indices(buffer.take()) == [4, 5, 6, 7]


def test_a_group_that_failed_is_replaced_by_one_of_its_domain():
    gate, buffer = make(alpha=0, groups_per_step=3, quotas=Quotas.of_ratios((2, 1)))
    play(gate, buffer, 0)
    play(gate, buffer, 2)
    gate.admit(1)
    for member in range(2):
        buffer.add(make_trajectory(1, member, status=Status.SANDBOX_LOST, reward=None))
    assert gate.next_domain() == 1 and not gate.admit(3)
    play(gate, buffer, 4)
    assert indices(buffer.take()) == [0, 2, 4]


def test_the_first_groups_that_are_complete_are_trained_on_and_the_redundant_ones_end():
    gate = StalenessGate(alpha=0, groups_per_step=2, redundant=2)
    buffer = ReplayBuffer(gate, GroupSize(2))
    assert [gate.admit(group) for group in range(5)] == [True] * 4 + [False]
    for group in (3, 1):
        for member in range(2):
            buffer.add(make_trajectory(group, member, start_version=0))
    assert indices(buffer.take()) == [1, 3]
    assert buffer.drop_overdue({0: 0}) == [0], "group 2 has no token yet, and may still be fresh"
    assert not gate.admit(5), "it would be too old"
    gate.publish(1)
    assert buffer.drop_overdue({2: 1}) == []
    assert [gate.admit(group) for group in range(5, 9)] == [True] * 3 + [False]
    assert gate.counts()["dropped_stale"] == 1


def test_the_first_valid_members_are_trained_on_and_the_redundant_ones_end():
    gate = StalenessGate(alpha=0, groups_per_step=2)
    buffer = ReplayBuffer(gate, GroupSize(2, redundant=2))
    lost = {"status": Status.SANDBOX_LOST, "reward": None}
    gate.admit(0)
    assert not buffer.add(make_trajectory(0, 3))
    assert not buffer.add(make_trajectory(0, 2, **lost))
    assert buffer.add(make_trajectory(0, 0)), "member 1 is still being played"
    assert not gate.in_flight(0)
    gate.admit(1)
    back = [buffer.add(make_trajectory(1, member, **lost)) for member in range(3)]
    assert not any([*back, buffer.add(make_trajectory(1, 3))]), "nothing is left to end"
    members = [[t.episode.key.member for t in group.members] for group in buffer.take()]
    assert members == [[0, 3], [0, 3]], "as many as without others, the valid ones first"


def test_redundant_groups_of_slow_domains_never_stop_a_run():
    for seed in range(50):
        _Life(seed, waits=False, redundant=seed % 5).stale()


@dataclass
class _Flight:
    begun: int
    rounds: int  # until it ends


class _Life:
    """Groups of random lengths until the learner has made VERSIONS steps. Some domains are slow."""

    def __init__(self, seed, waits, redundant=0):
        self._dice = dice = random.Random(seed)
        self._gate = StalenessGate(
            alpha=dice.randint(0, 16) / 4,
            groups_per_step=dice.randint(1, 4),
            max_uses=1 if redundant else dice.choice([1, 1, 2, 3]),
            quotas=Quotas.of_ratios(dice.choice([(1,), (5, 2, 1), (1, 3)]), dice.randint(1, 2)),
            redundant=redundant,
        )
        quotas = self._gate.quotas
        self._streams = [
            filter(lambda group, own=domain: quotas.domain(group) == own, itertools.count())
            for domain in quotas.domains
        ]
        self._slow = [dice.random() / 2 for _ in quotas.domains]
        dynamic = dice.random() < 0.3
        self._buffer = ReplayBuffer(self._gate, GroupSize(1), waits=waits, dynamic=dynamic)
        self._flights = {}

    def stale(self):
        """Returns how many groups were dropped as too old."""
        idle = 0
        while self._gate.version < VERSIONS:
            moved = self._admit() + self._land() + self._train()
            idle = 0 if moved or self._flights else idle + 1
            assert idle < 2, "it goes no further"
        return self._gate.counts()["dropped_stale"]

    def _admit(self):
        before = len(self._flights)
        while (domain := self._gate.next_domain()) is not None:
            group = next(self._streams[domain])
            assert self._gate.admit(group)
            rounds = self._dice.randint(3, 60) if self._dice.random() < self._slow[domain] else 0
            self._flights[group] = _Flight(self._gate.version, rounds)
        return len(self._flights) - before

    def _land(self):
        landed = [group for group, flight in self._flights.items() if flight.rounds == 0]
        for flight in self._flights.values():
            flight.rounds -= 1
        for group in landed:
            is_lost = self._dice.random() < 0.05
            judged = {"reward": float(self._dice.random() < 0.5)}
            ended = {"status": Status.SANDBOX_LOST, "reward": None} if is_lost else judged
            start = self._flights.pop(group).begun
            self._buffer.add(make_trajectory(group, 0, start_version=start, **ended))
        return len(landed)

    def _train(self):
        batch = self._buffer.take()
        if batch:
            first, of = self._gate.version * self._gate.groups_per_step, self._gate.quotas.domain
            places = range(first, first + self._gate.groups_per_step)
            assert collections.Counter(map(of, places)) == collections.Counter(
                of(group.index) for group in batch
            )
            self._gate.publish(self._gate.version + 1)
            begun = {group: flight.begun for group, flight in self._flights.items()}
            for group in self._buffer.drop_overdue(begun):
                del self._flights[group]
        return len(batch)
