"""Meshes that tests compute on."""

import dataclasses
import math

import jax
from jax.sharding import AxisType, Mesh

from ale_jax.config.hardware import MeshShape


def mesh_of(**sizes: int) -> Mesh:
    """Returns a mesh with these sizes and otherwise ones, of the first devices; of one device, for
    tests that divide nothing, without sizes."""
    axes = dataclasses.asdict(MeshShape(data=1)) | sizes
    devices = jax.devices()[: math.prod(axes.values())]
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices)
