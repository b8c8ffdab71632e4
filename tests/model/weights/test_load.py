"""A checkpoint's weights, in whatever type they are stored, arrive where they belong, once."""

import dataclasses
import gc
import tracemalloc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from tests.model.shapes import MOE, changed
from tests.model.weights.families import random_params, save_model


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("wanted", [jnp.float32, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
def test_any_stored_type_becomes_the_wanted_one(stored, wanted, tmp_path):
    params = load_params(open_checkpoint(save_model("qwen3", tmp_path / "stored", stored)), wanted)
    exact = load_params(open_checkpoint(save_model("qwen3", tmp_path / "exact")))

    def check(ours, exact):
        expected = torch.from_numpy(np.array(exact)).to(stored).float().numpy()
        np.testing.assert_array_equal(ours, expected.astype(wanted))

    jax.tree.map(check, params, exact)


@dataclasses.dataclass
class _Counting:
    """A tensor that counts the numbers read from it."""

    tensor: object
    count: int = 0

    @property
    def shape(self):
        return self.tensor.shape

    def read(self, bounds):
        part = self.tensor.read(bounds)
        self.count += part.size
        return part


def test_each_device_gets_its_part_and_no_number_is_read_twice(tmp_path):
    checkpoint = open_checkpoint(save_model("qwen3_moe", tmp_path))
    counting = {name: _Counting(tensor) for name, tensor in checkpoint.tensors.items()}
    mesh = make_mesh(MeshShape(fsdp=2, expert=2, tensor=2))
    shardings = param_shardings(checkpoint.shape, mesh)
    sharded = load_params(dataclasses.replace(checkpoint, tensors=counting), shardings=shardings)
    assert {name: c.count for name, c in counting.items()} == {
        name: np.prod(tensor.shape) for name, tensor in checkpoint.tensors.items()
    }
    assert jax.tree.map(lambda array: array.sharding, sharded) == shardings
    gate_EDF = sharded["layers"][1]["gate_EDF"]
    assert {shard.data.shape for shard in gate_EDF.addressable_shards} == {(4, 16, 12)}
    jax.tree.map(np.testing.assert_array_equal, sharded, load_params(checkpoint))


def _peak_beside_the_result(action):
    """Bytes. On a CPU jax may keep the very memory that a weight was read into: this is no peak."""
    tracemalloc.start()
    try:
        result = action()
        with_result, peak = tracemalloc.get_traced_memory()
        del result
        gc.collect()
        return peak - (with_result - tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


@pytest.mark.heavy
def test_nothing_is_twice_in_memory(tmp_path):
    shape = changed(MOE, vocab_size=2048, width=256, num_layers=6, expert_width=128)
    params = random_params(shape)
    export(tmp_path / "whole", params, shape)
    largest = max(array.nbytes for array in jax.tree.leaves(params))
    assert sum(array.nbytes for array in jax.tree.leaves(params)) > 10 * largest
    checkpoint = open_checkpoint(tmp_path / "whole")
    shardings = param_shardings(shape, make_mesh(MeshShape(fsdp=2, expert=2, tensor=2)))
    load = partial(load_params, checkpoint, shardings=shardings)
    assert _peak_beside_the_result(load) < 1.5 * largest
    loaded = load()
    write = partial(export, tmp_path / "again", loaded, shape)
    assert _peak_beside_the_result(write) < 1.5 * largest


def test_what_is_neither_folder_nor_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no checkpoint at .*nowhere: give a Hugging Face folder"):
        open_checkpoint(tmp_path / "nowhere")
