"""Meshes that tests compute on."""

import jax
from jax.sharding import Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import mesh_sizes


def one_device_mesh() -> Mesh:
    """Returns a mesh of the first device, with all axes, for tests that divide nothing."""
    sizes = mesh_sizes(MeshShape(), 1)
    kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=jax.devices()[:1]
    )
