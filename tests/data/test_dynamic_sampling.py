"""Groups of equal outcomes are replaced, by a rule that does not ask who came back first."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.data.replay import REPLACEABLE_STEPS, Group, GroupSize, ReplayBuffer
from ale_jax.data.staleness import Drop, StalenessGate
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory

SIZE = 2


def members(group, differ, version=0):
    rewards = (1.0, 0.0 if differ else 1.0)
    return [
        make_trajectory(group, m, reward=r, start_version=version) for m, r in enumerate(rewards)
    ]


class Run:
    """Rollouts that play whatever they may, and bring it back in an order of their own."""

    def __init__(self, signals, seed=0, alpha=0.0, groups_per_step=2):
        self.gate = StalenessGate(alpha, groups_per_step)
        self.dropped = []
        self.buffer = ReplayBuffer(
            self.gate,
            GroupSize(SIZE),
            on_drop=lambda group: self.dropped.append(group),
            dynamic=True,
        )
        self._signals, self._draw, self.admitted, self._out = signals, random.Random(seed), 0, []

    def step(self):
        """The indices of the groups of the next step."""
        while not (groups := self.buffer.take()):
            self._admit()
            self.buffer.add(self._out.pop(self._draw.randrange(len(self._out))))
        self.gate.publish(self.gate.version + 1)
        return [group.index for group in groups]

    def _admit(self):
        while self.gate.admit(self.admitted):
            differ = self._signals[self.admitted % len(self._signals)]
            self._out += members(self.admitted, differ, self.gate.version)
            self.admitted += 1


def test_the_next_groups_take_the_place_of_those_without_a_signal():
    run = Run([False, True, False, True, True, True])
    assert [run.step(), run.step(), run.step()] == [[1, 3], [4, 5], [7, 9]]
    assert [group.index for group in run.dropped] == [0, 2, 6, 8]
    assert {group.reason for group in run.dropped} == {Drop.EQUAL}
    assert run.gate.counts()["dropped_equal"] == 4


def test_a_step_ends_although_nothing_has_a_signal():
    run = Run([False])
    assert [run.step(), run.step()] == [[4, 5], [10, 11]]
    assert run.gate.counts()["dropped_equal"] == 2 * REPLACEABLE_STEPS * 2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 99))
def test_without_staleness_the_order_of_return_changes_nothing(signals, groups_per_step, seed):
    one, other = (Run(signals, s, groups_per_step=groups_per_step) for s in (seed, seed + 100))
    for _ in range(4):
        before = one.admitted
        step = one.step()
        assert step == other.step()
        assert one.admitted == other.admitted <= before + 3 * groups_per_step
        assert one.gate.outstanding() == []
        for index in range(before, before + REPLACEABLE_STEPS * groups_per_step):
            assert signals[index % len(signals)] or index not in step
    assert sorted(g.index for g in one.dropped) == sorted(g.index for g in other.dropped)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 99))
def test_ahead_of_the_learner_each_step_still_ends_within_its_bound(signals, quarters, seed):
    run = Run(signals, seed, alpha=quarters / 4)
    for version in range(5):
        assert len(run.step()) == 2
        dropped_of_version = REPLACEABLE_STEPS * 2 * (version + 1)
        assert run.gate.counts()["dropped_equal"] <= dropped_of_version
        assert run.gate.accepted <= run.gate.capacity


def test_without_the_option_equal_groups_are_kept():
    gate = StalenessGate(0.0, 1)
    buffer = ReplayBuffer(gate, GroupSize(SIZE))
    gate.admit(0)
    for trajectory in members(0, differ=False):
        buffer.add(trajectory)
    assert [group.index for group in buffer.take()] == [0]


def test_a_signal_is_among_the_valid():
    won, lost = members(0, differ=True)
    invalid = make_trajectory(0, 2, status=Status.SANDBOX_LOST, reward=None)
    assert Group(0, (won, lost)).has_signal and Group(0, (won, lost, invalid)).has_signal
    assert not Group(0, (won, invalid)).has_signal and not Group(0, (won, won)).has_signal
