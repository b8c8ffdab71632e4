"""Where things are drawn."""

import pytest

from ale_jax.monitor.charts import Scale, moving_mean, nice_ticks, path, thin


def test_ticks_are_round_and_inside():
    assert nice_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert nice_ticks(0.07, 13.4) == [5, 10]
    assert nice_ticks(-3e-6, 7e-6) == [-2e-6, 0, 2e-6, 4e-6, 6e-6]


def test_scales_map_to_percent_and_y_points_down():
    assert Scale(10, 20)(12.5) == 25
    assert Scale(0, 1, down=True)(0.25) == 75


def test_moving_mean_looks_back_only():
    points = [(0, 2.0), (1, 4.0), (2, 9.0), (3, 2.0)]
    assert moving_mean(points, 2) == [(0, 2.0), (1, 3.0), (2, 6.5), (3, 5.5)]


def test_thinning_keeps_the_mean():
    points = [(float(i), float(i)) for i in range(1000)]
    few = thin(points, 10)
    assert len(few) == 10
    assert sum(y for _, y in few) / 10 == pytest.approx(499.5)


def test_paths():
    scale = Scale(0, 2)
    assert path([(0, 0), (1, 2)], scale, scale) == "M0 0L50 100"
    assert path([(1, 1)], scale, scale) == "M50 50h0.01"
