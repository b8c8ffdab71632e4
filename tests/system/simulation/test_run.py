"""Simulated runs take the time that can be worked out by hand, and keep what real ones promise."""

import dataclasses
import math

import pytest

from ale_jax.config.rollout import DeadlinesConfig
from ale_jax.status import Status
from ale_jax.system.rollouts.loop import RolloutLoop
from ale_jax.system.simulation import run
from ale_jax.system.simulation.engines import Engines
from ale_jax.system.simulation.run import Setup, simulate
from ale_jax.system.simulation.world import Course, Crowding
from benchmarks.asynchrony.simulated import kept_promises

TWO = Setup(groups_per_step=2, group_size=2, places=4, update_seconds=3.0)


def always(seconds):
    return lambda key, chance: Course(seconds)


def test_a_synchronous_step_is_its_rollout_and_its_update():
    found = simulate(TWO, always(7.0), steps=5, seed=0)
    assert found.seconds_per_step == pytest.approx(10.0)
    assert found.learner_busy == pytest.approx(0.3)
    assert found.places_busy == pytest.approx(0.7)
    assert (found.mean_age, found.stale_share, found.episodes) == (0.0, 0.0, 20)


def test_too_few_places_play_one_after_another():
    found = simulate(dataclasses.replace(TWO, places=2), always(7.0), steps=5, seed=0)
    assert found.seconds_per_step == pytest.approx(17.0)


def test_one_step_ahead_the_longer_of_both_bounds():
    """The first step waits for its rollout. The last one's update ends the run."""
    ahead = dataclasses.replace(TWO, alpha=1.0)
    found = simulate(ahead, always(7.0), steps=50, seed=0)
    assert found.seconds_per_step == pytest.approx((50 * 7.0 + 3.0) / 50)
    slow = dataclasses.replace(ahead, update_seconds=20.0)
    assert simulate(slow, always(7.0), 50, 0).seconds_per_step == pytest.approx(
        (7.0 + 50 * 20.0) / 50
    )


def test_steps_that_are_unlike_are_simulated_until_their_mean_is_known(monkeypatch):
    """One episode in ten takes twenty times as long: 20 steps do not tell the mean of steps."""

    monkeypatch.setattr(run, "PRECISION", 0.05)

    def rarely_slow(key, chance):
        return Course(140.0 if chance.random() < 0.1 else 7.0)

    few = simulate(TWO, rarely_slow, 20, 0)
    known = simulate(TWO, rarely_slow, 20, 0, most=20_000)
    assert few.episodes == 4 * 20 and few.error > 0.1
    assert known.episodes > 4 * 200 and known.error <= 0.05
    expected = 3.0 + 7.0 + 133.0 * (1 - 0.9**4)
    assert known.seconds_per_step == pytest.approx(expected, rel=0.15)
    assert simulate(TWO, rarely_slow, 20, 0, most=100).episodes == 4 * 80
    assert simulate(TWO, always(7.0), 20, 0, most=20_000).episodes == 4 * 20


def test_an_update_is_looked_at_so_many_times_however_long_it_takes(monkeypatch):
    looks = []
    monkeypatch.setattr(RolloutLoop, "advance", _counted(RolloutLoop.advance, looks))
    slow = dataclasses.replace(TWO, update_seconds=86400.0)
    assert simulate(slow, always(7.0), 2, 0).seconds_per_step == pytest.approx(86407.0)
    assert len(looks) < 2 * 1100


def _counted(call, calls):
    def counted(*args):
        calls.append(args)
        return call(*args)

    return counted


def test_a_slow_group_holds_a_step_back_unless_there_is_another_one():
    def course(key, chance):
        return Course(50.0 if key.group == 1 else 7.0)

    spare = dataclasses.replace(TWO, places=6, stragglers="drop")
    assert simulate(spare, course, 1, 0).seconds_per_step == pytest.approx(53.0)
    redundant = dataclasses.replace(spare, redundant_groups=1)
    found = simulate(redundant, course, 2, 0)
    assert found.seconds_per_step == pytest.approx(10.0), "its places are free again at once"
    assert found.stale_share == pytest.approx(2 / 6)  # of each step one


def test_a_slow_attempt_holds_its_group_back_unless_there_is_another_one():
    def course(key, chance):
        return Course(50.0 if key.member == 1 else 7.0)

    assert simulate(TWO, course, 1, 0).seconds_per_step == pytest.approx(53.0)
    redundant = dataclasses.replace(TWO, places=6, redundant_members=1)
    found = simulate(redundant, course, 2, 0)
    assert found.seconds_per_step == pytest.approx(10.0), "its places are free again at once"
    assert (found.stale_share, found.episodes) == (0.0, 8)


def test_reward_workers_free_places_and_are_waited_for_themselves():
    """Two places play four episodes of 7 s and then judge for 5 s each. With reward workers, the
    last two verdicts begin after 14 s; a single one makes all four from the seventh second on."""

    def course(key, chance):
        return Course(7.0, verdict=5.0)

    def seconds(reward_workers):
        setup = dataclasses.replace(TWO, places=2, reward_workers=reward_workers)
        return simulate(setup, course, 3, 0)

    assert seconds(0).seconds_per_step == pytest.approx(24.0 + 3.0)
    assert seconds(2).seconds_per_step == pytest.approx(14.0 + 5.0 + 3.0)
    assert seconds(1).seconds_per_step == pytest.approx(7.0 + 4 * 5.0 + 3.0)
    assert seconds(1).episodes == 12
    assert seconds(1).places_busy == pytest.approx(14.0 / 30.0), "verdicts are no longer in places"


def test_engines_divide_the_episodes_and_wait_for_their_process():
    """Eight episodes, each of which slows others of its engine by a tenth. Two engines of a process
    that each dispatches for half of its time wait for a quarter of it."""
    eight = dataclasses.replace(TWO, group_size=4, places=8)

    def seconds(engines):
        setup = dataclasses.replace(eight, crowding=Crowding(episodes=0.1, engines=engines))
        return simulate(setup, always(10.0), steps=3, seed=0).seconds_per_step - 3.0

    assert seconds(Engines()) == pytest.approx(17.0)
    assert seconds(Engines(2, processes=2, dispatch=0.5)) == pytest.approx(13.0)
    assert seconds(Engines(2, processes=1, dispatch=0.5)) == pytest.approx(13.0 * 1.25)
    assert seconds(Engines(16)) == pytest.approx(10.0), "more engines than episodes"


def test_what_hangs_is_played_again_after_its_deadline():
    hung = []

    def course(key, chance):
        if hung:
            return Course(7.0)
        hung.append(key)
        return Course(math.inf)

    limits = DeadlinesConfig(turn_seconds=30.0, episode_seconds=30.0)
    found = simulate(dataclasses.replace(TWO, deadlines=limits), course, 1, 0)
    # Workers look for it twice a second, and pause before they play it again.
    assert 30.0 + 7.0 + 3.0 <= found.seconds_per_step <= 30.0 + 7.0 + 3.0 + 1.0


def test_an_outage_is_waited_for():
    """Four attempts fail together, after a second. Then nothing begins but one trial of a second
    after each pause, of 1, 2, 4, 8, 16, 30 and 30 s. The eighth trial, after 30 s more, takes its
    seven, and then the others do."""
    begun = []

    def course(key, chance):
        begun.append(key)
        return Course(1.0, Status.SANDBOX_LOST, None) if len(begun) < 12 else Course(7.0)

    found = simulate(TWO, course, 1, 0)
    pauses = 1 + 2 + 4 + 8 + 16 + 30 + 30 + 30
    assert found.seconds_per_step == pytest.approx(1 + pauses + 7 * 1 + 7 + 7 + 3, abs=2.0)


def test_the_same_seed_is_the_same_run():
    def course(key, chance):
        return Course(chance.expovariate(0.1))

    setup = dataclasses.replace(TWO, alpha=1.5, stragglers="drop", redundant_groups=1)
    first, second, other = (simulate(setup, course, 40, seed) for seed in (3, 3, 4))
    assert first == second != other


def test_in_thousands_of_steps_nothing_is_too_old_and_the_run_never_stands_still():
    """What simulations assert: the gate's states, and that attempts that are cancelled end."""
    assert sum(kept_promises(seed, 100) for seed in range(20)) == 2000
