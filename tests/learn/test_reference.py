"""The policy after the warm start, on disk: what it holds, and what is missed."""

from pathlib import Path

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import LoraShape
from ale_jax.learn.reference import load_reference, save_reference
from ale_jax.learn.state import with_new_adapters
from ale_jax.model.lora import trained, with_trained
from ale_jax.model.params import init_params
from ale_jax.model.sharding import make_mesh
from tests.model.shapes import DENSE

MESH = make_mesh(MeshShape(data=-1))
WEIGHTS = [init_params(jax.random.key(seed), DENSE) for seed in (1, 2, 3)]


def nothing(*args, **fields):
    pass


def test_the_reference_outlives_the_process(tmp_path):
    save_reference(tmp_path, trained(WEIGHTS[0]), nothing)
    save_reference(tmp_path, trained(WEIGHTS[1]), nothing)  # the start before was interrupted
    found = load_reference(tmp_path, trained(WEIGHTS[2]), nothing)
    found = with_trained(WEIGHTS[2], found)
    jax.tree.map(np.testing.assert_array_equal, found, WEIGHTS[1])


def test_with_adapters_the_reference_is_their_values_alone(tmp_path):
    lora = LoraShape(rank=2, alpha=4.0, targets=("q", "v"))
    then, now = (
        with_new_adapters(jax.random.key(seed), WEIGHTS[0], DENSE, lora, MESH) for seed in (7, 8)
    )
    save_reference(tmp_path, trained(then), nothing)
    found = with_trained(now, load_reference(tmp_path, trained(now), nothing))
    jax.tree.map(np.testing.assert_array_equal, found["adapters"], then["adapters"])
    assert found["layers"] is now["layers"]
    weights = sum(f.stat().st_size for f in Path(tmp_path).rglob("*") if f.is_file())
    assert weights < sum(x.nbytes for x in jax.tree.leaves(now["layers"]))


def test_a_reference_that_is_gone_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"reference is missing or damaged.*--overwrite"):
        load_reference(tmp_path, trained(WEIGHTS[0]), nothing)
