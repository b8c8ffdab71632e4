"""The copies of the weights that the engines of a process sample with."""

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import FLOAT32, SAME
from ale_jax.model.params import init_params
from ale_jax.model.replicas import SamplingCopy, engine_meshes, engine_sizes
from ale_jax.model.sampling_weights import sampling_weights
from ale_jax.model.sharding import make_mesh, num_data_shards, param_shardings
from tests.model.shapes import MOE

MESH = MeshShape(data=1, fsdp=4, expert=1, tensor=2)


def test_a_process_has_as_many_engines_as_its_devices_allow():
    mesh = make_mesh(MESH)
    assert engine_meshes(mesh, 0) == engine_meshes(mesh, 8) == [mesh]
    meshes = engine_meshes(mesh, 2)
    assert [dict(each.shape)["tensor"] for each in meshes] == [2, 2, 2, 2]
    used = [device for each in meshes for device in each.devices.flat]
    assert used == list(mesh.devices.flat), "each device has one engine"
    (size,) = {tuple(each.shape.values()) for each in engine_meshes(mesh, 4)}
    assert dict(zip(mesh.axis_names, size, strict=True))["data"] == 2


@pytest.mark.parametrize(
    "sizes", [{"data": 2, "context": 4}, {"data": 1, "tensor": 2, "context": 4}]
)
def test_an_engine_divides_its_work_over_the_devices_of_a_row(sizes):
    """A decode step has one token of each conversation, which cannot be divided along context."""
    mesh = make_mesh(MeshShape(**sizes))
    (own,) = engine_meshes(mesh, 0)
    assert (own.shape["context"], num_data_shards(own)) == (1, 8 // sizes.get("tensor", 1))
    assert list(own.devices.flat) == list(mesh.devices.flat)


def test_what_cannot_be_divided_is_refused():
    mesh = make_mesh(MESH)
    with pytest.raises(ValueError, match="devices_per_engine 3 does not divide the 8 devices"):
        engine_meshes(mesh, 3)
    with pytest.raises(ValueError, match="does not divide the 1 devices of an engine"):
        engine_meshes(mesh, 1)
    with pytest.raises(ValueError, match=r"mesh\.expert 4 x mesh\.tensor 2"):
        engine_sizes({"data": 1, "fsdp": 1, "expert": 4, "tensor": 2, "context": 1}, 4)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("sizes", "devices"), [(MESH, 0), (MESH, 2), (MESH, 4), (MeshShape(tensor=2, context=2), 0)]
)
def test_each_engine_has_the_learners_weights_on_its_own_devices(sizes, devices):
    mesh = make_mesh(sizes)
    params = init_params(jax.random.key(1), MOE)
    learned = jax.device_put(params, param_shardings(MOE, mesh))
    meshes = engine_meshes(mesh, devices)
    copies = SamplingCopy(MOE, FLOAT32, mesh, SAME, meshes)(learned)
    assert len(copies) == 8 // (devices or 8)
    expected = sampling_weights(params, MOE, FLOAT32, None)
    for copy, own in zip(copies, meshes, strict=True):
        for found, wanted in zip(*map(jax.tree.leaves, (copy, expected)), strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.sharding.device_set == set(own.devices.flat)


@pytest.mark.heavy
@pytest.mark.parametrize("stored_as", [SAME, "int8"])
@pytest.mark.parametrize(
    "sizes", [MeshShape(tensor=2), MeshShape(data=1, fsdp=2, tensor=2), MeshShape(data=1, fsdp=4)]
)
def test_engines_may_have_devices_that_the_learner_does_not_have(sizes, stored_as):
    """Two engines of two devices, beside a learner of four."""
    mesh = make_mesh(sizes, jax.devices()[:4])
    meshes = engine_meshes(mesh, 2, 4)
    assert [device for own in meshes for device in own.devices.flat] == jax.devices()[4:]
    params = init_params(jax.random.key(1), MOE)
    learned = jax.device_put(params, param_shardings(MOE, mesh))
    copies = SamplingCopy(MOE, FLOAT32, mesh, stored_as, meshes)(learned)
    expected = sampling_weights(params, MOE, FLOAT32, None, stored_as)
    for copy, own in zip(copies, meshes, strict=True):
        for found, wanted in zip(*map(jax.tree.leaves, (copy, expected)), strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.sharding.device_set == set(own.devices.flat)
        (q,) = {w.sharding.spec[1] for w in jax.tree.leaves(copy["layers"][0]["q_DNH"])[:1]}
        assert q == "tensor", "it is divided over the devices of the engine"
