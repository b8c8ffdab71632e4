"""Forks of sandboxes on disk, in a pool."""

import dataclasses

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.disk.store import Reference
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from tests.sandbox.disk.conftest import SPEC
from tests.sandbox.pool.fakes import Events, in_a_loop, until

pytestmark = pytest.mark.heavy


async def text(pool, id: str, command: str) -> str:
    return (await pool.call(id, "run", command=command)).output


@in_a_loop
async def test_forks_have_the_whole_root_and_the_rest_goes_on(disk_runtime):
    async with NodePool(disk_runtime, PoolOptions(slots=8), Events()) as pool:
        parent = await pool.start(StartRequest(SPEC))
        await text(pool, parent.id, "x=kept; echo first > /usr/bin/mark")
        forks = await pool.fork(parent.id, 2)
        assert await text(pool, parent.id, "echo $x; echo second > /usr/bin/mark") == "kept\n"
        for fork in forks:
            assert await text(pool, fork.id, "cat /usr/bin/mark") == "first\n"
        (again,) = await pool.fork(forks[0].id, 1)
        assert await text(pool, again.id, "cat /usr/bin/mark") == "first\n"


@in_a_loop
async def test_a_removed_snapshot_frees_its_copy(disk_runtime):
    options = PoolOptions(slots=8, snapshot_mb=48)
    async with NodePool(disk_runtime, options, events := Events()) as pool:
        box = await pool.start(StartRequest(SPEC))
        await text(pool, box.id, "head -c 30M /dev/urandom > /var/f")
        first = await pool.snapshot(box.id)
        assert 30 << 20 <= first.bytes < 32 << 20
        reference = Reference.parse(await pool.get_snapshot(first.id))
        await pool.snapshot(box.id)
        assert "snapshot_removed" in events.kinds
        roots = disk_runtime._roots
        await until(lambda: reference.name not in roots._store)
        with pytest.raises(ValueError, match="removed to make room"):
            await pool.restore(box.id, first.id)


@in_a_loop
async def test_a_snapshot_that_does_not_fit_is_not_kept(disk_runtime):
    async with NodePool(disk_runtime, PoolOptions(slots=8, snapshot_mb=16), Events()) as pool:
        box = await pool.start(StartRequest(dataclasses.replace(SPEC)))
        await text(pool, box.id, "head -c 30M /dev/urandom > /var/f")
        before = set(disk_runtime._roots._store._promised)
        with pytest.raises(SandboxError, match="raise snapshot_mb"):
            await pool.snapshot(box.id)
        await until(lambda: set(disk_runtime._roots._store._promised) == before)
