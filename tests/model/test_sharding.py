"""Sizes of meshes."""

import re

import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import mesh_sizes


def test_data_takes_the_devices_that_the_other_axes_leave():
    assert mesh_sizes(MeshShape(expert=2, tensor=2), 8)["data"] == 2
    assert mesh_sizes(MeshShape(data=4, tensor=2), 8)["data"] == 4


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (MeshShape(expert=3), "'data': -1, .* needs a multiple of 3 devices, there are 4: set "),
        (MeshShape(expert=8), "needs a multiple of 8 devices, there are 4: set sizes whose "),
        (MeshShape(data=2, fsdp=4), "'data': 2, .* needs 8 devices, there are 4: set mesh.data = "),
    ],
)
def test_a_mesh_that_does_not_fit_is_named_as_it_was_given(shape, message):
    with pytest.raises(ValueError) as refused:
        mesh_sizes(shape, 4)
    assert re.search(message, str(refused.value))
