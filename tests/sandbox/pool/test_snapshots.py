"""The store of snapshots."""

import asyncio
import collections
import dataclasses
import errno
import hashlib
import os
import tempfile

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.pool import snapshots
from ale_jax.sandbox.pool.api import NodeFull, StartRequest
from ale_jax.sandbox.pool.snapshots import SnapshotStore
from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.pool.fakes import (
    SPEC,
    Events,
    FakeRuntime,
    FakeSandbox,
    HandPool,
    in_a_loop,
    settle,
    until,
)


@in_a_loop
async def test_equal_contents_are_one(tmp_path):
    store = SnapshotStore(str(tmp_path), 1000, Events())
    first, again = [await store.put(b"a", at) for at in (5.0, 6.0)]
    other = await store.put(b"b", 7.0)
    assert first == again and first.id == hashlib.sha256(b"a").hexdigest()
    assert (first.bytes, first.taken_at) == (1, 5.0)
    assert sorted(os.listdir(tmp_path)) == sorted([first.id, other.id])
    assert await store.get(first.id) == b"a"


@in_a_loop
async def test_what_was_not_used_for_longest_makes_room(tmp_path):
    events = Events()
    store = SnapshotStore(str(tmp_path), 10, events)
    a, b = [await store.put(content, 1.0) for content in (b"aaaa", b"bbbb")]
    await store.get(a.id)
    c = await store.put(b"cccc", 1.0)
    assert (a.id in store, b.id in store, c.id in store) == (True, False, True)
    assert sorted(os.listdir(tmp_path)) == sorted([a.id, c.id]) and store.bytes == 8
    assert events == [("snapshot_removed", {"snapshot": b.id})]
    with pytest.raises(ValueError, match="removed to make room"):
        await store.get(b.id)


@in_a_loop
async def test_a_full_disk_is_told_of_as_that(tmp_path, monkeypatch):
    gone = []
    store = SnapshotStore(str(tmp_path), 1000, Events(), gone.append)

    def full(*file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    with monkeypatch.context() as patched, pytest.raises(NodeFull) as raised:
        patched.setattr(snapshots, "write_atomically", full)
        await store.put(b"abc", 1.0)
    assert str(raised.value) == "the disk of the server has no room for a snapshot of 3 bytes"
    assert gone == [b"abc"] and (await store.put(b"abc", 1.0)).id in store


@in_a_loop
async def test_a_pinned_one_stays_and_a_snapshot_without_room_is_refused(tmp_path):
    store = SnapshotStore(str(tmp_path), 10, Events())
    a, b = [await store.put(content, 1.0) for content in (b"aaaa", b"bbbb")]
    store.pin(a.id)
    with pytest.raises(SandboxError, match="snapshot_mb"):
        await store.put(b"ccccccc", 1.0)
    assert b.id in store  # nothing goes for what does not fit anyway
    await store.put(b"cccccc", 1.0)
    assert a.id in store and b.id not in store
    store.unpin(a.id)
    await store.put(b"ddddddd", 1.0)
    assert a.id not in store


@in_a_loop
async def test_the_next_store_finds_them_and_leaves_other_files_alone(tmp_path):
    old = await SnapshotStore(str(tmp_path), 10, Events()).put(b"aaaa", 1.0)
    os.utime(tmp_path / old.id, (1.0, 1.0))
    (tmp_path / "readme").write_text("mine")
    store = SnapshotStore(str(tmp_path), 10, Events())
    new = await store.put(b"bbbb", 2.0)
    assert await store.get(new.id) == b"bbbb" and old.id in store
    last = await store.put(b"cccccc", 3.0)
    assert sorted(os.listdir(tmp_path)) == sorted([new.id, last.id, "readme"])


@in_a_loop
async def test_a_damaged_one_is_not_restored(tmp_path):
    store = SnapshotStore(str(tmp_path), 10, Events())
    info = await store.put(b"aaaa", 1.0)
    (tmp_path / info.id).write_bytes(b"aa")
    with pytest.raises(SandboxError, match="damaged"):
        await store.get(info.id)
    (tmp_path / info.id).unlink()
    with pytest.raises(SandboxError, match="cannot be read"):
        await store.get(info.id)


@in_a_loop
async def test_a_store_without_a_directory_leaves_nothing():
    store = SnapshotStore("", 10, Events())
    info = await store.put(b"aaaa", 1.0)
    directory = store.directory
    assert (directory / info.id).exists()
    store.close()
    assert not directory.exists()


@in_a_loop
async def test_many_at_once_are_each_there(tmp_path):
    store = SnapshotStore(str(tmp_path), 100, Events())
    contents = [b"same"] * 5 + [bytes([n]) * 4 for n in range(5)]
    infos = await asyncio.gather(*(store.put(content, 1.0) for content in contents))
    assert [await store.get(info.id) for info in infos] == contents
    assert len(os.listdir(tmp_path)) == 6


@in_a_loop
async def test_the_directory_of_a_killed_owner_goes_and_those_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    me = Owner.current()
    dead = dataclasses.replace(me, start=me.start + 1)
    elsewhere = dataclasses.replace(me, boot="another")
    for name in (f"{dead}-x1", f"{me}-x2", f"{elsewhere}-x3", "mine"):
        (tmp_path / f"ale-snap-{name}").mkdir()
        (tmp_path / f"ale-snap-{name}" / "file").write_text("x")
    SnapshotStore("", 10, Events()).close()
    left = {f"ale-snap-{name}" for name in (f"{me}-x2", f"{elsewhere}-x3", "mine")}
    assert set(os.listdir(tmp_path)) == left


@in_a_loop
async def test_a_pool_leaves_no_directory_of_its_own_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with HandPool(FakeRuntime()):
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


class Busy:
    """Makes every snapshot and restore of a fake sandbox wait for `go`. at_once: how many of each
    owner's sandboxes are at it; most: of all, at any time."""

    def __init__(self, monkeypatch):
        self.go, self.at_once, self.most = asyncio.Event(), collections.Counter(), 0
        for name in ("snapshot", "restore"):
            monkeypatch.setattr(FakeSandbox, name, self._slow(getattr(FakeSandbox, name)))

    def _slow(self, method):
        async def slow(sandbox, *args, **kwargs):
            owner = sandbox.spec.env[0][1] if sandbox.spec.env else ""
            self.at_once[owner] += 1
            self.most = max(self.most, self.at_once.total())
            try:
                await self.go.wait()
                return await method(sandbox, *args, **kwargs)
            finally:
                self.at_once[owner] -= 1

        return slow


@in_a_loop
async def test_snapshots_in_memory_are_few_for_each_owner_and_for_all(monkeypatch):
    busy = Busy(monkeypatch)
    async with HandPool(FakeRuntime(), slots=9, memory_mb=1 << 20, cpus=99.0) as pool:
        for owner, count in (("ann", 4), ("bob", 3), ("cid", 1)):
            # Its archive may have 2 * 2 * 64 MiB: four of them fit at a time, two of one owner.
            spec = SandboxSpec(files_mb=64, env=(("OWNER", owner),))
            await pool.start_many(StartRequest(spec, labels={"tenant": owner}), count)
        ids = [each.id for each in await pool.statuses()]
        taken = [asyncio.ensure_future(pool.snapshot(id)) for id in ids]
        await settle()
        assert +busy.at_once == {"ann": 2, "bob": 2}
        busy.go.set()
        assert len(await asyncio.gather(*taken)) == 8 and busy.most == 4


@in_a_loop
async def test_starts_restores_and_forks_read_few_snapshots_at_a_time(monkeypatch):
    monkeypatch.setattr(snapshots, "MAX_HELD", 200)
    busy = Busy(monkeypatch)
    async with HandPool(FakeRuntime(), slots=12, memory_mb=1 << 20, cpus=99.0) as pool:
        info = await pool.put_snapshot(b"x" * 40)  # two of them fit into one owner's 100
        box = await pool.start(StartRequest(SPEC))
        request = StartRequest(SPEC, snapshot=info.id)
        waiting = [asyncio.ensure_future(pool.start(request)) for _ in range(5)]
        await until(lambda: busy.most == 2)
        for each in (pool.restore(box.id, info.id), pool.fork(box.id, 3)):
            waiting.append(asyncio.ensure_future(each))
        await settle()
        busy.go.set()
        await asyncio.gather(*waiting)
        assert busy.most == 2


@in_a_loop
async def test_memory_is_given_in_turn_and_a_larger_archive_is_held_alone():
    memory, order = snapshots.Memory(10), []

    async def hold(name, size, go):
        async with memory.hold(size):
            order.append(name)
            await go.wait()

    gates = [asyncio.Event() for _ in range(4)]
    sizes = {"small": 4, "huge": 99, "gone": 4, "last": 4}
    pairs = zip(sizes.items(), gates, strict=True)
    tasks = [asyncio.ensure_future(hold(*each, go)) for each, go in pairs]
    await settle()
    assert order == ["small"]  # "gone" would fit, but comes after "huge"
    tasks[2].cancel()
    gates[0].set()
    await settle()
    assert order == ["small", "huge"]
    gates[1].set()
    await settle()
    assert order == ["small", "huge", "last"]
    gates[3].set()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_a_loop
async def test_a_sandbox_on_disk_does_not_read_an_archive_of_files(tmp_path):
    store = SnapshotStore(str(tmp_path), 10_000, Events())
    archive, reference = [await store.put(b"x" * size, 1.0) for size in (1001, 1000)]
    with pytest.raises(SandboxError, match="of a sandbox in memory, not of one on disk"):
        await store.get_reference(archive.id)
    assert await store.get_reference(reference.id) == b"x" * 1000
