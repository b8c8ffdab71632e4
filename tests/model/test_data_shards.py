"""Where the sampler's arrays lie on a mesh."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ale_jax.config.hardware import MeshShape
from ale_jax.model.cache import on_each_shard, place
from ale_jax.model.sharding import make_mesh


def test_pages_and_slots_are_cut_along_the_data_axes_heads_along_tensor():
    mesh = make_mesh(MeshShape(data=1, fsdp=2, expert=2, tensor=2))
    assert place("GP", mesh) == PartitionSpec("tensor", ("fsdp", "expert"))
    assert place("BN", make_mesh(MeshShape(data=8))) == PartitionSpec("data")
    assert place("BTG", mesh) == PartitionSpec(("fsdp", "expert"), None, "tensor")


def test_each_share_counts_from_its_own_first_page():
    """Also within another such function."""
    mesh = make_mesh(MeshShape(data=4, tensor=2))
    first = on_each_shard("GP B -> BG")(lambda x_GP, page_B: x_GP[:, page_B].swapaxes(0, 1))
    outer = on_each_shard("GP B -> BG")(lambda x_GP, page_B: first(x_GP, page_B))
    x_GP, page_B = jnp.arange(24.0).reshape(2, 12), jnp.array([0, 1, 2, 0])
    expected_BG = x_GP[:, page_B + 3 * jnp.arange(4)].T
    with jax.set_mesh(mesh):
        found_BG = outer(x_GP, page_B)
    assert found_BG.sharding == NamedSharding(mesh, PartitionSpec("data", "tensor"))
    assert (found_BG == expected_BG).all()
    assert (first(x_GP, page_B) == x_GP[:, page_B].T).all()
