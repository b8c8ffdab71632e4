"""The benchmark of growth: exponents, and what of them is said."""

import contextlib
import json
import time

import pytest

from benchmarks import growth
from benchmarks.growth import PARTS, Part, Point, curve, line, main


@contextlib.contextmanager
def _square(size):
    yield lambda: time.sleep(size * size / 100)


def test_the_exponent_is_that_of_the_growth_since_the_size_before(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 26.0, 30.0, 62.0])
    monkeypatch.setattr(growth.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    found = list(curve(Part((1, 4, 8), _square), calls=1))
    assert found == [Point(1, 1.0, None), Point(4, 16.0, 2.0), Point(8, 32.0, 1.0)]
    marked = [line("square", point).endswith("SUPER-LINEAR") for point in found]
    assert marked == [False, True, False]


@pytest.mark.slow
def test_each_part_has_a_curve(capsys):
    assert main(["--points=2", "--calls=1", f"--parts={','.join(PARTS)}"]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    curves = json.loads(summary)["curves"]
    assert {name: len(points) for name, points in curves.items()} == dict.fromkeys(PARTS, 2)
    assert len(lines) == 2 * len(PARTS) and all(s > 0 for c in curves.values() for _, s, _ in c)


def test_more_calls_than_a_conversation_has_room_for_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--calls=10"])
    assert "--calls 10 must be from 1 to 9" in capsys.readouterr().err
