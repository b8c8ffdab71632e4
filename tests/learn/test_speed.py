"""How fast updates were, from batches that can be counted by hand."""

import threading

import numpy as np
import pytest

from ale_jax.config.learn import Shape
from ale_jax.config.model import FULL
from ale_jax.data.packing import Sample, pack_all
from ale_jax.learn.speed import Stopwatch, speed
from ale_jax.model.arithmetic import peak_flops
from tests.data.make_trajectories import make_turn
from tests.model.shapes import MOE
from tests.model.test_arithmetic import HEAD, PROJECTIONS


def _batches():
    """Three conversations of 5, 3 and 3 tokens, in rows of 8: 11 tokens and 5 of padding."""
    turns = [make_turn([1, 2], [3, 4, 5]), make_turn([1], [2, 3]), make_turn([1], [2, 3])]
    samples = [Sample((turn,), np.ones(1, np.float32)) for turn in turns]
    return pack_all(samples, Shape(1, 8, 2))


def test_its_figures():
    slow = speed(_batches(), 0.5, MOE, FULL, peak=0.0)
    assert slow == {"time/update_s": 0.5, "train_tokens_per_second": 22.0}
    peak = peak_flops(["TPU v5 lite"] * 2)
    fast = speed(_batches(), 0.5, MOE, FULL, peak)
    assert fast.pop("mfu") == pytest.approx(_flops() / 0.5 / (2 * 197e12), rel=1e-12)
    assert fast == slow


def _flops():
    experts = 2 * 2 * (2 * 3 * 32 * 24 + 32 * 8)
    keys = (1 + 2 + 3 + 4 + 5) + 2 * (1 + 2 + 3)  # each token attends to itself and what is before
    return 3 * (11 * (PROJECTIONS + experts + HEAD) + keys * 2 * 2 * 2 * 64)


class Later:
    """An array that is computed when it is told."""

    def __init__(self):
        self.told = threading.Event()

    def block_until_ready(self):
        self.told.wait()
        return self


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_clock_stops_when_the_update_is_there_and_not_when_it_is_asked():
    clock, sums = Clock(), Later()
    watch = Stopwatch(clock)
    watch.stop_with([sums])
    clock.now = 5.0
    sums.told.set()
    assert watch.seconds() == 5.0
    clock.now = 9.0
    assert watch.seconds() == 5.0
