"""Pages on their way out of the cache and back: every bit, of several conversations and shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.engine.dispatch import ExpertRecord
from ale_jax.engine.page_swaps import PageSwaps
from ale_jax.model.memory import cache_shardings, empty_cache
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE

pytestmark = pytest.mark.heavy

SHAPE = engine_shape(max_sequences=2, max_sequence_length=64)  # room for eight pages of 8 tokens


def _mesh(data, tensor):
    devices = np.array(jax.devices()[: data * tensor]).reshape((data, 1, 1, tensor, 1))
    return Mesh(devices, tuple(vars(MeshShape())), axis_types=(AxisType.Auto,) * 5)


def _noise(cache):
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 20, x.shape).astype(x.dtype)), cache)


def _of(cache, pages):
    """The content of pages as bytes, so that -0 is not 0."""
    return [np.asarray(x)[:, pages].tobytes() for x in jax.tree.leaves(cache)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("axes", [None, (2, 1), (2, 2)], ids=str)
def test_what_is_taken_out_comes_back_elsewhere_to_the_last_bit(dtype, axes):
    """Twenty pages on each of two shards, or on one."""
    shards, mesh = (1, None) if axes is None else (2, _mesh(*axes))
    cache = _noise(empty_cache(MOE, 20 * shards, 8, jnp.dtype(dtype)))
    if mesh is not None:
        cache = jax.device_put(cache, cache_shardings(MOE, mesh))
    record = ExpertRecord(engine_shape(max_sequences=2, pages=20 * shards), MOE, shards)
    record._expert_pLK[:] = np.random.default_rng(1).integers(0, 8, record._expert_pLK.shape)
    last, before = shards - 1, jax.device_get(cache)
    taken = [(0, [7, 2]), (last, [5, 9, 4, 1, 0]), (0, [3])]
    contents = [_of(before, [20 * shard + page for page in pages]) for shard, pages in taken]
    experts = [record.of_pages(shard, pages) for shard, pages in taken]

    with jax.set_mesh(mesh) if mesh is not None else jax.default_device(None):
        out = PageSwaps(SHAPE, shards)
        copies = [out.swap_out(shard, shard, pages) for shard, pages in taken]
        cache, copied = out.begin(cache, mesh)
        room = 8 - sum(len(pages) for shard, pages in taken if shard == 0)
        assert out.can_swap_out(0, room) and not out.can_swap_out(0, room + 1)
        assert out.can_swap_in(0, 8) and not out.can_swap_in(0, 9)
        assert copies[0].layers is None
        out.finish(jax.device_get(copied), record)

        back = PageSwaps(SHAPE, shards)
        back.swap_in(last, last, [10, 11], copies[0], 0)
        back.swap_in(0, 0, [12, 13, 14], copies[1], 2)  # but for its first two pages
        back.swap_in(0, 0, [15], copies[2], 0)
        cache, copied = back.begin(cache, mesh)
    assert (len(out), len(back), copied) == (8, 6, ([], []))
    back.finish(copied, record)

    after = jax.device_get(cache)
    tail = [20 * last + page for page in (4, 1, 0)]
    for target, wanted in (
        ([20 * last + 10, 20 * last + 11], contents[0]),
        ([12, 13, 14], _of(before, tail)),
        ([15], contents[2]),
    ):
        assert _of(after, target) == wanted
    written = {20 * last + 10, 20 * last + 11, 12, 13, 14, 15}
    untouched = [page for page in range(20 * shards) if page not in written]
    assert _of(after, untouched) == _of(before, untouched)
    np.testing.assert_array_equal(record.of_pages(last, [10, 11]), experts[0])
    np.testing.assert_array_equal(record.of_pages(0, [12, 13, 14]), experts[1][2:])
    np.testing.assert_array_equal(record.of_pages(0, [15]), experts[2])
