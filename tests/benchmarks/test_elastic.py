"""The plans for eight devices that the benchmark of asynchrony compares, and their divisions."""

import dataclasses

import pytest

from ale_jax.system.lending import Lending
from ale_jax.system.simulation.run import Setup
from ale_jax.system.simulation.world import Crowding
from benchmarks.asynchrony import elastic
from benchmarks.asynchrony.elastic import BOUND, COLOCATED, DEVICES, ELASTIC, SPLIT, Division

BASE = Setup(16, 8, 32, 60.0, crowding=Crowding(0.004))


def test_every_division_of_eight_devices_is_tried_once():
    tried = list(elastic.divisions())
    assert len(tried) == len(set(tried)) == 1 + 1 + 7 + 21
    for each in tried:
        if each.plan in (SPLIT, ELASTIC):
            assert each.engines + each.learning == DEVICES
            assert 0 <= each.lent < each.engines and (each.lent > 0) == (each.plan == ELASTIC)


def test_an_update_is_as_fast_as_it_has_devices():
    split = elastic.setup_of(BASE, Division(SPLIT, 4, 4))
    assert (split.update_seconds, split.lent) == (120.0, None)
    lent = elastic.setup_of(BASE, Division(ELASTIC, 4, 4, 2)).lent
    assert lent.lending == Lending(4, 2, places=32)
    assert split.update_seconds / lent.faster == pytest.approx(60.0 * 8 / 6)


def test_only_devices_that_do_both_take_turns():
    """Everything is half as fast beside 32 episodes, of which four are on each engine."""
    both = elastic.setup_of(BASE, Division(COLOCATED, 8, 8))
    assert both.update_seconds == 60.0 and both.crowding.of_update(32) == pytest.approx(2.0)
    assert both.crowding.of_episodes(32, in_update=True) == pytest.approx(2.0 + 3 * 0.004)
    apart = elastic.setup_of(BASE, Division(BOUND, 7, 7)).crowding
    assert apart.of_update(32) == 1.0
    assert apart.of_episodes(28, in_update=True) == pytest.approx(1.0 + 3 * 0.004)


def test_a_decode_step_is_prolonged_by_what_was_measured():
    """From 16 to 128 conversations 3.31 ms, of a step that would take 7.82 ms with one."""
    assert pytest.approx(0.00378, abs=1e-5) == elastic.SLOWER


@pytest.mark.slow
def test_each_plan_is_compared_with_its_best_division(capsys):
    """If conversations do not slow each other down, one engine is enough, and a synchronous step
    takes R + U together, and R + 8/7 U apart or with all but one engine lent, U being 0.3 R."""
    small = dataclasses.replace(BASE, groups_per_step=4, group_size=2, places=8)
    free, dear = (
        elastic.compare(dataclasses.replace(small, crowding=Crowding(slower)), 1, 1, "made up")
        for slower in (0.0, 1.0)
    )
    assert (free["split"], free["elastic"]) == ("1 engines", "2 engines, 1 lent")
    assert free["over_split"] == pytest.approx(1.0, abs=2e-3)
    assert free["over_colocated"] == free["bound"] == pytest.approx(0.968, abs=0.03)
    assert dear["split"] >= "3 engines"
    assert len(capsys.readouterr().out.splitlines()) == 8
