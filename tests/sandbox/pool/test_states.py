"""The way through the states."""

import pytest

from ale_jax.sandbox.pool.api import Cause, State
from ale_jax.sandbox.pool.pooled_sandbox import MAX_CHANGES, TRANSITIONS, WITH_CAUSE, Life

FULL_LIFE = [State.STARTING, State.READY, State.RUNNING]


def walk(states) -> Life:
    life = Life.begin(0.0)
    for at, state in enumerate(states, 1):
        life = life.to(state, float(at))
    return life


def test_history_tells_each_step_and_when_it_was():
    life = walk(FULL_LIFE).to(State.STOPPING, 4.0, "idle", Cause.IDLE).to(State.STOPPED, 5.0)
    assert [(change.at, change.state) for change in life.history] == [
        (0.0, "pending"),
        (1.0, "starting"),
        (2.0, "ready"),
        (3.0, "running"),
        (4.0, "stopping"),
        (5.0, "stopped"),
    ]
    assert life.history[4].detail == "idle"
    assert life.is_over and life.cause is Cause.IDLE


def test_every_state_has_its_transitions_and_only_the_last_has_none():
    assert set(TRANSITIONS) == set(State)
    assert [state for state in State if not TRANSITIONS[state]] == [State.STOPPED]


@pytest.mark.parametrize(
    ("states", "forbidden"),
    [
        ([], State.RUNNING),
        ([State.STARTING, State.RUNNING], State.READY),
        ([State.STARTING, State.RUNNING], State.STOPPED),
        (FULL_LIFE, State.PENDING),
    ],
)
def test_a_forbidden_step_is_a_fault_of_ours(states, forbidden):
    with pytest.raises(AssertionError):
        walk(states).to(forbidden, 9.0)


def test_nothing_follows_the_end():
    life = walk([]).to(State.STOPPING, 1.0, "", Cause.STOPPED).to(State.STOPPED, 2.0)
    for state in State:
        with pytest.raises(AssertionError):
            life.to(state, 3.0, "", Cause.LOST if state in WITH_CAUSE else None)


def test_a_cause_goes_with_an_end_and_with_nothing_else():
    with pytest.raises(AssertionError):
        walk([]).to(State.FAILED, 1.0)
    with pytest.raises(AssertionError):
        walk([]).to(State.STARTING, 1.0, "", Cause.LOST)


def test_recreation_begins_anew_without_a_cause():
    life = walk(FULL_LIFE).to(State.FAILED, 4.0, "", Cause.LOST)
    assert life.is_over and life.cause is Cause.LOST
    life = life.to(State.PENDING, 5.0)
    assert not life.is_over and life.cause is None


def test_history_is_bounded():
    life = walk([State.STARTING])
    for at in range(40):
        life = life.to(State.FAILED, float(at), "", Cause.LOST).to(State.PENDING, float(at))
        life = life.to(State.STARTING, float(at))
    assert len(life.history) == MAX_CHANGES == 100
    assert life.history[-1].at == 39.0
