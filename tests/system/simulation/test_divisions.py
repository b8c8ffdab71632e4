"""Of other divisions of the devices, those are tried that a run accepts and whose speed is told."""

import dataclasses

import pytest

from ale_jax.system.simulation import search
from ale_jax.system.simulation.divisions import divisions, untold
from ale_jax.system.simulation.fit import Costs
from ale_jax.system.simulation.observed import Outcome
from ale_jax.system.simulation.predict import crowding_of, update_seconds
from ale_jax.system.simulation.updates import PROPORTIONAL, Scaling
from ale_jax.system.simulation.world import Course
from tests.system.configs import smoke_config

# Four engines of one device each beside four that learn, on which updates take 6 s.
CONFIG = smoke_config(
    rollout={"engine_devices": 4, "devices_per_engine": 1},
    hardware={"chip": "h100", "devices": 8},
    learn={"microbatch_rows": 12},
)
COSTS = Costs(
    lambda key, chance: Course(8.0),
    *(6.0, 0.0),
    learners=4,
    scaling=Scaling(2.0, 2, 6),
    dispatch=0.1,
    most_playing=4,
    most_of_engine=1.0,
)


def tried(config=CONFIG, **changes):
    found = divisions(config, dataclasses.replace(COSTS, **changes))
    return {(each.rollout.engine_devices, each.rollout.lent_engines) for each in found}


def test_only_possible_divisions_whose_speed_is_told_are_tried():
    """Updates on 2 to 6 devices are told, and 12 rows cannot be divided among 5 of these."""
    with_others = {(2, 0), (5, 0), (5, 1), (6, 0), (6, 1)}
    assert tried() == {(4, 2), *with_others}
    assert tried(scaling=Scaling(2.0, 2, 4)) == {(5, 0), (5, 1), (6, 0), (6, 1)}
    assert tried(dispatch=None) == {(4, 2)}
    recorded = dataclasses.replace(CONFIG, rl=dataclasses.replace(CONFIG.rl, record_steps=True))
    assert tried(recorded) == {(2, 0), (5, 0), (6, 0)}, "these must not lend"


@pytest.mark.parametrize(
    ("rollout", "costs", "why"),
    [
        ({"engine_devices": 0, "devices_per_engine": 0}, {}, "all learn and sample says nothing"),
        ({"devices_per_engine": 0}, {}, "engines of other sizes"),
        ({}, {"learners": 0}, "set hardware.chip"),
        ({}, {"most_playing": 0}, "is not told by runs"),
        ({}, {"tells_places": False}, "is not told by runs"),
        ({}, {"scaling": PROPORTIONAL}, "give --update-speedup"),
    ],
)
def test_what_is_not_told_is_not_varied_and_said(rollout, costs, why):
    config = dataclasses.replace(CONFIG, rollout=dataclasses.replace(CONFIG.rollout, **rollout))
    said = untold(config, dataclasses.replace(COSTS, **costs))
    assert why in said and "rollout.lent_engines are not varied" in said
    assert tried(config, **costs) == set()


def test_all_is_varied_with_dispatches():
    assert untold(CONFIG, COSTS) == ""
    assert "rollout.engine_devices is not varied" in untold(
        CONFIG, dataclasses.replace(COSTS, dispatch=None)
    )


def test_a_division_is_predicted_with_its_own_devices():
    rollout = dataclasses.replace(CONFIG.rollout, engine_devices=6)
    other = dataclasses.replace(CONFIG, rollout=rollout)
    assert update_seconds(CONFIG, COSTS) == 6.0
    assert update_seconds(other, COSTS) == pytest.approx(12.0)
    engines = crowding_of(other, COSTS).engines
    assert (engines.number, engines.per_process, engines.dispatch) == (6, 6, 0.1)
    with pytest.raises(ValueError, match=r"updates on 4 devices do not tell what they take on 2"):
        update_seconds(other, dataclasses.replace(COSTS, scaling=PROPORTIONAL))


def test_divisions_are_searched_with_the_fastest_schedule_and_others_with_the_best(monkeypatch):
    """Two engines are the faster the fewer places they have; four, the more these have."""

    def predict(config, costs):
        rl, rollout = config.rl, config.rollout
        places = rollout.actors * rollout.episodes_per_actor
        few = (rollout.engine_devices, rollout.lent_engines) == (2, 0)
        seconds = 10.0 + places - 20.0 if few else 10.0 - places
        return Outcome(seconds - rl.alpha, 1.0, 1.0, 0.0, 0.0, 1)

    monkeypatch.setattr(search, "predict", predict)
    found = search.search(CONFIG, COSTS)
    assert found[0].config == CONFIG
    configs = [each.config for each in found]
    assert len(configs) == len({str(each) for each in configs}), "each is simulated once"
    rollout = search.best(found, 0.0).config.rollout
    assert (rollout.engine_devices, rollout.actors * rollout.episodes_per_actor) == (2, 2)
    told = search.changes(CONFIG, search.best(found, 0.0).config)
    assert "--config.rollout.engine_devices=2" in told
    assert not any("lent_engines" in each for each in told)
    assert "--config.rollout.lent_engines=2" in search.changes(CONFIG, _lending())


def _lending():
    return dataclasses.replace(CONFIG, rollout=dataclasses.replace(CONFIG.rollout, lent_engines=2))


def test_more_episodes_of_an_engine_than_were_measured_are_told():
    """Four places on four engines were measured."""
    found = {
        each.config.rollout.engine_devices: each.beyond
        for each in search._simulated([CONFIG, *divisions(CONFIG, COSTS)], COSTS)
    }
    assert found == {2: True, 4: False, 5: False, 6: False}
