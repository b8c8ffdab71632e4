import math
import threading
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ale_jax.data.staleness import Drop, StalenessGate, age
from tests.rows import each_row


def admit_all(gate, first=0):
    """Admits groups first, first + 1, ... until the gate refuses; how many came in."""
    count = 0
    while gate.admit(first + count):
        count += 1
    return count


@each_row("alpha, permits", [(0, 4), (0.2, 4), (0.25, 5), (0.5, 6), (1, 8), (2.5, 14)])
def test_permits_at_the_start(alpha, permits):
    assert admit_all(StalenessGate(alpha, groups_per_step=4)) == permits


@given(st.integers(0, 400), st.integers(1, 128), st.integers(0, 10**6))
@example(57, 100, 0)
def test_capacity_is_the_exact_floor(hundredths, size, version):
    """Against exact arithmetic: 0.57 * 100 must not lose a group to binary rounding."""
    gate = StalenessGate(hundredths / 100, size, version)
    assert gate.capacity == math.floor((Fraction(hundredths, 100) + version + 1) * size)


def test_publishing_frees_the_permits_of_one_step():
    gate = StalenessGate(alpha=0.5, groups_per_step=2)
    assert admit_all(gate) == 3
    for group in (0, 1):
        gate.complete(group)
        gate.train(group)
    assert not gate.admit(3)
    gate.publish(1)
    assert admit_all(gate, first=3) == 2
    assert gate.counts() == {
        "in_flight": 3,
        "waiting": 0,
        "trained": 2,
        "dropped_failed": 0,
        "dropped_stale": 0,
        "dropped_equal": 0,
    }


def test_admissions_are_numbered_within_their_version():
    gate = StalenessGate(alpha=1, groups_per_step=2)
    for group in (0, 1, 2):
        gate.admit(group)
    numbers = {group: gate.complete(group).number for group in (0, 1)}
    gate.drop(1, Drop.EQUAL)
    gate.train(0)
    gate.publish(1)
    for group in (3, 4):
        gate.admit(group)
    numbers |= {group: gate.complete(group).number for group in (2, 3, 4)}
    assert numbers == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1}


def test_a_dropped_group_gives_its_permit_back():
    gate = StalenessGate(alpha=0, groups_per_step=2)
    admit_all(gate)
    gate.drop(0, Drop.FAILED)
    gate.complete(1)
    gate.drop(1, Drop.STALE)
    assert admit_all(gate, first=2) == 2
    assert gate.counts()["dropped_failed"] == gate.counts()["dropped_stale"] == 1


def test_every_group_ends_once():
    gate = StalenessGate(alpha=1, groups_per_step=2)
    for act in (gate.complete, gate.train, lambda g: gate.drop(g, Drop.FAILED)):
        with pytest.raises(AssertionError, match="group 7"):
            act(7)  # never admitted
    gate.admit(0)
    with pytest.raises(AssertionError, match="out already"):
        gate.admit(0)
    with pytest.raises(AssertionError, match="not waiting"):
        gate.train(0)
    gate.complete(0)
    with pytest.raises(AssertionError, match="not in flight"):
        gate.complete(0)
    gate.train(0)
    with pytest.raises(AssertionError, match="neither"):
        gate.drop(0, Drop.STALE)


def test_versions_are_published_one_by_one():
    gate = StalenessGate(alpha=1, groups_per_step=2, version=5)
    for version in (5, 7):
        with pytest.raises(AssertionError):
            gate.publish(version)
    gate.publish(6)


@each_row(
    "alpha, max_age, oldest",
    [(0, 0, 4), (0.1, 0, 4), (0.5, 1, 2), (1, 1, 4), (1.25, 2, 1), (2, 2, 4)],
)
def test_age_limits(alpha, max_age, oldest):
    """Whole alpha: every group may be alpha old. Fractional: alpha P groups one version more."""
    gate = StalenessGate(alpha, groups_per_step=4, version=9)
    assert (gate.max_age, gate.oldest_per_batch(0)) == (max_age, oldest)
    assert not gate.too_old(9 - max_age)
    assert gate.too_old(9 - max_age - 1)
    assert age(9, 7) == 2


def test_a_resumed_gate_goes_on_where_it_stopped():
    assert admit_all(StalenessGate(alpha=0.5, groups_per_step=4, version=10)) == 6


def test_outstanding_groups_are_those_to_play_again():
    gate = StalenessGate(alpha=1, groups_per_step=2)
    admit_all(gate)
    for group in (2, 0):
        gate.complete(group)
    gate.train(0)
    gate.drop(3, Drop.FAILED)
    assert gate.outstanding() == [1, 2]


@pytest.mark.parametrize("alpha", [-0.5, math.nan, math.inf])
def test_a_bad_alpha_is_refused_by_value(alpha):
    with pytest.raises(ValueError, match=f"alpha {alpha}"):
        StalenessGate(alpha, groups_per_step=2)


def test_a_step_without_groups_is_refused():
    with pytest.raises(ValueError, match="groups_per_step 0"):
        StalenessGate(1, groups_per_step=0)


def publish_next(gate):
    gate.complete(0)
    gate.train(0)
    gate.publish(1)


@pytest.mark.parametrize(
    "free_a_permit", [publish_next, lambda gate: gate.drop(0, Drop.FAILED)], ids=["publish", "drop"]
)
def test_a_waiting_admission_is_woken(free_a_permit):
    gate = StalenessGate(alpha=0, groups_per_step=1)
    assert gate.admit(0)
    admitted = []
    # Its own time-out lies far beyond the join: only a notification can bring it back in time.
    waiter = threading.Thread(target=lambda: admitted.append(gate.admit(1, 3600.0)), daemon=True)
    waiter.start()
    free_a_permit(gate)
    waiter.join(20.0)
    assert admitted == [True]


def take_step(gate, groups):
    for group in groups:
        gate.complete(group)
        gate.train(group)


@each_row("alpha, too_old, permits", [(0, True, 0), (1, False, 1)])
def test_what_begins_after_a_step_has_its_groups_is_for_the_next_step(alpha, too_old, permits):
    """Group 3 gives its permit back while the step is computed. What would begin now has the age 1
    at the next step."""
    gate = StalenessGate(alpha, groups_per_step=2)
    admit_all(gate)
    take_step(gate, (0, 1))
    assert (gate.version, gate.next_step, gate.too_old(0)) == (0, 1, too_old)
    if alpha:
        gate.drop(3, Drop.FAILED)
    assert admit_all(gate, first=4) == permits
    gate.publish(1)
    assert (gate.version, gate.next_step) == (1, 1)
