"""Sizes of meshes, and the order of programs on them."""

import re
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import dispatching, mesh_sizes


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


@pytest.mark.parametrize(
    ("devices", "waits"), [((2, 3), False), ((1, 2), True), ((1, 0), True), ((1,), False)]
)
def test_programs_wait_for_those_on_the_same_devices(devices, waits):
    """While another thread dispatches to devices 0 and 1. One device keeps its own order."""
    held, other = (Mesh(np.array(jax.devices())[list(each)], "x") for each in ((0, 1), devices))
    begun = threading.Event()

    def dispatch():
        with dispatching(other):
            begun.set()

    thread = threading.Thread(target=dispatch)
    with dispatching(held):
        thread.start()
        assert begun.wait(0.2 if waits else 60) != waits
    thread.join(60)
    assert begun.is_set(), "it need not wait any more"
