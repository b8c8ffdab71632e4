"""Released checkpoints, where there are some: ALE_WEIGHTS names the folder that they lie in."""

import os
from pathlib import Path

import pytest

from benchmarks.real_weights import REFERENCE, measure

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("file", REFERENCE)
def test_a_released_checkpoint_knows_what_it_knew(file):
    path = Path(os.environ.get("ALE_WEIGHTS", "")) / file
    if not path.is_file():
        pytest.skip(f"real weights are not part of the project: no {file} in ALE_WEIGHTS")
    assert abs(measure(path).nll - REFERENCE[file]) < 1e-4
