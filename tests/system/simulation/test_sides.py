"""Devices that change sides in simulated time: when `Lending` says so, and what that is worth."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.config.hardware import HardwareConfig
from ale_jax.system.lending import Lending
from ale_jax.system.simulation.engines import Engines
from ale_jax.system.simulation.fit import fitted
from ale_jax.system.simulation.observed import RunPart, timed_steps
from ale_jax.system.simulation.run import Setup, simulate, simulated
from ale_jax.system.simulation.sides import LentDevices, lent_devices
from ale_jax.system.simulation.world import Course, Crowding
from tests.system.configs import smoke_config

# Two engines, of which one lends its devices, with which updates are twice as fast.
LENT = LentDevices(Lending(engines=2, count=1, places=6), faster=2.0)
CROWDING = Crowding(episodes=0.1, engines=Engines(2))
PAIR = Setup(1, 2, 6, 6.0, alpha=1.0, crowding=CROWDING, lent=LENT)


def two_groups(key, chance):
    return Course(5.0 if key.group == 0 else 7.0)


def test_a_synchronous_update_is_lent_devices_as_nothing_is_in_progress():
    setup = dataclasses.replace(PAIR, groups_per_step=2, alpha=0.0, crowding=Crowding())
    found = simulate(setup, two_groups, steps=1, seed=0)
    assert found.seconds_per_step == pytest.approx(7.0 + 6.0 / 2.0)
    assert found.lent_share == 1.0
    found = simulate(dataclasses.replace(setup, lent=None), two_groups, steps=1, seed=0)
    assert (found.seconds_per_step, found.lent_share) == (pytest.approx(7.0 + 6.0), 0.0)


def test_meanwhile_all_conversations_are_at_the_engines_that_stay():
    """Four episodes on two engines are 1.1 times slower, until two have ended after 5.5 s. The
    other two are at one engine then, and need 2 * 1.1 s more; at two, they would not be slower."""
    times = simulated(PAIR, two_groups, steps=1, seed=0)
    (step,) = times.steps
    assert (step.taken, step.published, step.lent) == pytest.approx((5.5, 8.5, 3.0))
    assert [each.ended for each in times.attempts[:4]] == pytest.approx([5.5, 5.5, 7.7, 7.7])
    times = simulated(dataclasses.replace(PAIR, lent=None), two_groups, steps=1, seed=0)
    assert times.steps[0].published == pytest.approx(11.5) and times.steps[0].lent == 0.0
    assert [each.ended for each in times.attempts[:4]] == pytest.approx([5.5, 5.5, 7.5, 7.5])


def test_engines_are_back_when_the_weights_are_published():
    """Of the second group's 20 s, 5 are over when the update begins, and 3 / 1.1 when it ends. Then
    a third group is begun, and the rest takes 1.1 times as long, again on two engines."""

    def course(key, chance):
        return Course({0: 5.0, 1: 20.0}.get(key.group, 60.0))

    _, second = simulated(PAIR, course, steps=2, seed=0).steps
    assert second.taken == pytest.approx(8.5 + 1.1 * (20.0 - 5.0 - 3.0 / 1.1))


def test_engines_that_are_away_wait_for_no_dispatch():
    """Of three engines, which dispatch for half of their time, one is left."""
    three = Crowding(engines=Engines(3, dispatch=0.5))
    assert three.of_episodes(9, in_update=True, crowd=3.0) == 1.0
    assert three.of_episodes(9, in_update=True, crowd=1.5) == 1.25
    assert three.of_episodes(9, in_update=True) == pytest.approx(1.6)


@dataclasses.dataclass(frozen=True)
class Noted(Lending):
    """Writes down what it is asked, and what it says."""

    said: list = dataclasses.field(default_factory=list)

    def lends(self, in_progress, lent_before):
        lends = super().lends(in_progress, lent_before)
        self.said.append((in_progress, lent_before, lends))
        return lends


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 99),
    alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    late=st.sampled_from(["wait", "drop"]),
    engines=st.integers(2, 7),
    data=st.data(),
)
def test_each_update_is_lent_what_the_state_machine_says(seed, alpha, late, engines, data):
    lending = Noted(engines, data.draw(st.integers(1, engines - 1)), places=12)
    setup = Setup(2, 3, 12, 9.0, alpha, late, lent=LentDevices(lending, faster=1.5))
    times = simulated(setup, lambda key, chance: Course(chance.uniform(1.0, 30.0)), 30, seed)
    assert len(lending.said) == len(times.steps) == 30, "it is asked once for each step"
    lent = [lends for _, _, lends in lending.said]
    assert [before for _, before, _ in lending.said] == [False, *lent[:-1]]
    for step, (in_progress, *_) in list(zip(times.steps, lending.said, strict=True))[:15]:
        # Of what begins and ends at that moment, either may be counted.
        before, after = (step.taken - 1e-6, step.taken + 1e-6)
        sure = sum(each.begun < before and each.ended > after for each in times.attempts)
        most = sum(each.begun < after and each.ended > before for each in times.attempts)
        assert sure <= in_progress <= most
    for step, is_lent in zip(times.steps, lent, strict=True):
        seconds = step.published - step.taken
        assert seconds == pytest.approx(6.0 if is_lent else 9.0)
        assert step.lent == (seconds if is_lent else 0.0)


def test_what_an_update_takes_on_its_own_devices_is_told_by_those_that_were_lent_others():
    setup = dataclasses.replace(PAIR, groups_per_step=2, crowding=Crowding())
    times = simulated(setup, lambda key, chance: Course(chance.uniform(1.0, 30.0)), 60, 0)
    lent = [step.lent > 0.0 for step in times.steps]
    assert 0 < sum(lent) < 60
    steps = [dataclasses.replace(each, learners=2, lent=2) for each in timed_steps(times)]
    assert fitted([RunPart(times, steps)]).update_seconds == pytest.approx(6.0)


APART = {"engine_devices": 6, "devices_per_engine": 2, "lent_engines": 2}


def test_updates_are_faster_in_proportion_to_their_devices():
    """Two learn, and two engines of two each are lent."""
    config = smoke_config(rollout=APART, hardware={"chip": "h100", "devices": 8})
    lent = lent_devices(config)
    assert lent.faster == pytest.approx(3.0)
    places = config.rollout.actors * config.rollout.episodes_per_actor
    assert lent.lending == Lending(3, 2, places)
    assert lent_devices(smoke_config()) is None


def test_a_config_that_does_not_say_how_many_devices_learn_is_refused():
    config = smoke_config(rollout=APART)
    assert config.hardware == HardwareConfig()
    with pytest.raises(ValueError, match=r"lent_engines 2: how many devices learn .* set hardware"):
        lent_devices(config)
