"""The cost of adapters side by side, of a small policy."""

import pytest

from benchmarks.served_adapters import measure
from tests.model.shapes import DENSE


@pytest.mark.heavy
def test_each_number_of_adapters_is_timed():
    told = measure(DENSE, counts=(0, 2))
    assert told["conversations"] == 2 and told["over_none"][0] == 1.0
    assert all(told[name][count] > 0 for name in ("step_ms", "over_none") for count in (0, 2))
