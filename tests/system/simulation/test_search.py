"""Of the schedules that cannot be told apart, the cheapest is chosen, and only possible ones are
tried."""

import dataclasses

import pytest

from ale_jax.system.simulation import predict
from ale_jax.system.simulation.fit import Costs
from ale_jax.system.simulation.observed import Outcome
from ale_jax.system.simulation.predict import places_of, setup_of
from ale_jax.system.simulation.search import Candidate, best, changes, search
from ale_jax.system.simulation.world import Course, Crowding
from tests.system.configs import smoke_config

COSTS = Costs(lambda key, chance: Course(8.0), update_seconds=2.0, pause_seconds=0.0)


@pytest.fixture(autouse=True)
def _few_episodes(monkeypatch):
    monkeypatch.setattr(predict, "EPISODES", 40)
    monkeypatch.setattr(predict, "MOST_ATTEMPTS", 0)


def candidate(seconds, alpha, redundant=0):
    late = "drop" if redundant else "wait"
    rl = {"alpha": alpha, "redundant_groups": redundant, "stragglers": late}
    return Candidate(smoke_config(rl=rl), Outcome(seconds, 1.0, 1.0, 0.0, 0.0, 1), beyond=False)


def test_the_least_stale_of_those_within_the_error_is_chosen():
    slow, near, fastest = candidate(12.0, 0.0), candidate(10.5, 1.0), candidate(10.0, 2.0, 1)
    costly = candidate(10.1, 1.0, 1)
    all_of_them = [fastest, costly, near, slow]
    assert best(all_of_them, error=0.0) is fastest
    assert best(all_of_them, error=0.02) is costly
    assert best(all_of_them, error=0.06) is near
    assert best(all_of_them, error=0.3) is slow


def test_the_arguments_are_those_that_differ():
    config = smoke_config(rl={"alpha": 0.0})
    other = candidate(1.0, 2.0, 1).config
    assert changes(config, config) == []
    assert changes(config, other) == [
        "--config.rl.alpha=2.0",
        "--config.rl.stragglers=drop",
        "--config.rl.redundant_groups=1",
    ]


def test_schedules_are_tried_as_far_as_the_engine_has_slots():
    config = smoke_config(rl={"alpha": 0.25, "redundant_members": 1})
    found = search(config, dataclasses.replace(COSTS, most_playing=4, most_of_engine=4.0))
    assert found[0].config == config
    assert {each.config.rl.alpha for each in found} == {0.0, 0.25, 0.5, 1.0, 2.0}
    assert {places_of(each.config) for each in found} == {2, 4, 8}, "the engine has 8 slots"
    assert {places_of(each.config) for each in found if each.beyond} == {8}
    assert {each.config.rl.redundant_members for each in found} == {1}
    crowded = smoke_config(rl={"alpha": 0.25}, rollout={"episodes_per_actor": 6})
    assert {places_of(each.config) for each in search(crowded, COSTS)} == {3, 6}, "12 have no slots"
    untold = search(config, dataclasses.replace(COSTS, tells_places=False))
    assert {places_of(each.config) for each in untold} == {4}


def test_a_setup_has_what_the_config_and_the_costs_say():
    changed = {"alpha": 1.5, "stragglers": "drop", "redundant_groups": 3, "redundant_members": 2}
    config = smoke_config(rl=changed, rollout={"retries": 5})
    crowding = Crowding(0.1, 0.2, 0.3)
    costs = dataclasses.replace(COSTS, pause_seconds=0.7, crowding=crowding)
    setup = dataclasses.asdict(setup_of(config, costs))
    assert setup.items() >= changed.items()
    assert (setup["groups_per_step"], setup["group_size"], setup["places"]) == (2, 2, 4)
    assert (setup["update_seconds"], setup["pause_seconds"], setup["retries"]) == (2.0, 0.7, 5)
    assert setup["crowding"] == dataclasses.asdict(crowding)
