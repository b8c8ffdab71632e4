"""A checkpoint comes back bit for bit, or the one before it does; never anything else."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ale_jax.config.hardware import MeshShape
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.manifest import MANIFEST_FILE
from ale_jax.learn.state import TrainState, init_state
from ale_jax.model.sharding import make_mesh
from tests.model.shapes import MOE, changed

HOST = {"phase": "rl", "cursor": 17, "loss": 0.1, "groups": [[1, 2], []], "best": None}


class Events(list):
    def record(self, kind, detail, **fields):
        self.append((kind, detail, fields))

    def kinds(self):
        return [kind for kind, _, _ in self]


def tiny_state(value):
    """A state of two small arrays, so that a test of many saves is quick."""
    weights = {"w_D": jnp.full((8,), value, jnp.float32)}
    return TrainState(weights, (jnp.full((8,), -value),), jnp.asarray(int(value), jnp.int32))


def like(state, mesh):
    """What `restore_latest` needs to know of a state that is laid out in the same way on `mesh`."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, leaf.sharding.spec)
        ),
        state,
    )


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def shardings(state):
    return [leaf.sharding for leaf in jax.tree.leaves(state)]


def files_of(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


@pytest.mark.heavy
def test_a_sharded_state_comes_back_bit_for_bit_where_it_lay(tmp_path):
    mesh = make_mesh(MeshShape(data=1, fsdp=2, expert=2, tensor=2))
    shape = changed(MOE, num_layers=1)
    state = init_state(jax.random.key(3), shape, optax.adam(1e-3), mesh)
    moments = jax.device_put(state.opt_state, NamedSharding(mesh, PartitionSpec()))
    state = state.replace(opt_state=jax.tree.map(lambda leaf: leaf + 1, moments))
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(20, state, HOST | {"groups": ((1, 2), ())})
    # The same devices, and a run that goes on with them divided in another way.
    for mesh_again in (mesh, make_mesh(MeshShape(data=1, fsdp=1, expert=4, tensor=2))):
        target = like(state, mesh_again)
        with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
            step, restored, host = checkpoints.restore_latest(target)
        assert (step, host) == (20, HOST)
        assert_same(restored, state)
        assert shardings(restored) == shardings(target)


def test_a_state_donated_right_after_the_call_is_saved_as_it_was(tmp_path):
    zero, one = jnp.zeros((512, 512)), jnp.ones((512, 512))
    spoil = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 7 + 3, state), donate_argnums=0)
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        state = TrainState({"w_DD": one}, (one + 1,), jnp.asarray(1, jnp.int32))
        checkpoints.save(1, state, {})
        spoilt = spoil(state)
        assert spoilt.params["w_DD"][0, 0] == 10
        checkpoints.wait()
        _, restored, _ = checkpoints.restore_latest(
            TrainState({"w_DD": zero}, (zero,), jnp.asarray(0, jnp.int32))
        )
    assert np.all(restored.params["w_DD"] == 1) and np.all(restored.opt_state[0] == 2)
    assert restored.step == 1


def test_nothing_saved_restores_nothing(tmp_path):
    with Checkpoints(tmp_path / "new", 2, Events().record) as checkpoints:
        assert checkpoints.restore_latest(tiny_state(0)) is None


def test_the_keep_newest_stay(tmp_path):
    events = Events()
    with Checkpoints(tmp_path, 2, events.record) as checkpoints:
        for step in (1, 2, 3, 10):
            checkpoints.save(step, tiny_state(step), {"step": step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00000003", "step_00000010"]
    assert [fields["step"] for _, _, fields in events] == [1, 2, 3, 10]


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.heavy
@pytest.mark.parametrize("damage", [truncate, flip, os.unlink])
def test_whichever_file_is_damaged_the_checkpoint_before_is_used(tmp_path, damage):
    whole = tmp_path / "whole"
    with Checkpoints(whole, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {"step": 1})
        checkpoints.save(2, tiny_state(2.0), {"step": 2})
    names = [p.relative_to(whole) for p in files_of(whole / "step_00000002")]
    assert {"host.json", "manifest.json"} < {n.name for n in names} and len(names) > 5
    for name in names:
        copy = shutil.copytree(whole, tmp_path / "copy")
        if (copy / name).stat().st_size == 0 and damage is not os.unlink:
            (copy / name).write_bytes(b"x")
        else:
            damage(copy / name)
        events = Events()
        with Checkpoints(copy, 2, events.record) as checkpoints:
            step, state, host = checkpoints.restore_latest(tiny_state(0.0))
        assert (step, host) == (1, {"step": 1}), name
        assert_same(state, tiny_state(1.0))
        if name.name == MANIFEST_FILE and damage is os.unlink:
            assert events == []  # no manifest: a save that was cut off, not a damaged one
        else:
            [(kind, detail, _)] = events
            assert kind == "checkpoint_damaged" and str(name) in detail
        shutil.rmtree(copy)


def test_where_all_are_damaged_nothing_is_restored_or_changed(tmp_path):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.save(2, tiny_state(2.0), {})
    for step in (1, 2):
        flip(tmp_path / f"step_0000000{step}" / "host.json")
    before = files_of(tmp_path)
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        with pytest.raises(ValueError, match=r"all checkpoints .* damaged \(steps 1, 2\)"):
            checkpoints.restore_latest(tiny_state(0.0))
    assert files_of(tmp_path) == before


def test_one_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.save(2, tiny_state(2.0), {})
        checkpoints.wait()
        before, events = files_of(tmp_path), Events()

        def broken(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        with monkeypatch.context() as patch:
            patch.setattr("ale_jax.learn.manifest.file_digest", broken)
            with pytest.raises(OSError, match="step 2 cannot be read") as error:
                checkpoints.restore_latest(tiny_state(0.0))
        assert error.value.errno == errno.EIO
        assert events == [] and files_of(tmp_path) == before
        assert checkpoints.restore_latest(tiny_state(0.0))[0] == 2


def test_a_damaged_one_is_set_aside_only_by_a_new_one_of_its_step(tmp_path):
    damaged, aside = tmp_path / "step_00000002", tmp_path / "step_00000002.damaged"
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.save(2, tiny_state(2.0), {})
        checkpoints.wait()
        flip(damaged / "host.json")
        checkpoints.restore_latest(tiny_state(0.0))
        assert damaged.exists() and not aside.exists()
        checkpoints.save(2, tiny_state(5.0), {})
        checkpoints.wait()
        assert damaged.exists() and aside.exists()


def test_room_is_asked_for_what_will_be_kept(tmp_path, monkeypatch):
    # 8 floats, 8 floats and a number: 68 bytes each; two are kept while a third is written.
    def free(path):
        return SimpleNamespace(free=room)

    monkeypatch.setattr("ale_jax.learn.checkpoint.shutil.disk_usage", free)
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        room = 3 * 68
        checkpoints.require_room(tiny_state(0.0))
        room = 3 * 68 - 1
        with pytest.raises(ValueError, match=r"checkpoint\.keep 2"):
            checkpoints.require_room(tiny_state(0.0))
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.wait()
        checkpoints.require_room(tiny_state(0.0))


def test_what_was_cut_off_is_removed_and_nothing_else(tmp_path):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        assert not checkpoints.any()
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.save(2, tiny_state(2.0), {})
    (tmp_path / "step_00000002" / MANIFEST_FILE).unlink()
    (tmp_path / "step_00000007.damaged").mkdir()
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        assert checkpoints.any()
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["step_00000001", "step_00000007.damaged"]
        assert checkpoints.restore_latest(tiny_state(0.0))[0] == 1


def test_the_step_of_a_damaged_checkpoint_can_be_saved_again(tmp_path):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.save(2, tiny_state(2.0), {})
        checkpoints.wait()
        flip(tmp_path / "step_00000002" / "host.json")
        assert checkpoints.restore_latest(tiny_state(0.0))[0] == 1
        checkpoints.save(2, tiny_state(5.0), {})
        checkpoints.wait()
        step, state, _ = checkpoints.restore_latest(tiny_state(0.0))
    assert step == 2
    assert_same(state, tiny_state(5.0))


def test_another_format_is_refused_not_skipped(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("ale_jax.learn.manifest.FORMAT", 7)
        with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
            checkpoints.save(1, tiny_state(1.0), {})
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        with pytest.raises(ValueError, match="has format 7"):
            checkpoints.restore_latest(tiny_state(0.0))


# Orbax leaves the reads of the other arrays unawaited.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_state_of_other_shapes_is_refused(tmp_path):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.wait()
        other = tiny_state(0.0).replace(params={"w_D": jnp.zeros((9,))})
        with pytest.raises(ValueError, match="does not fit the model"):
            checkpoints.restore_latest(other)
    assert (tmp_path / "step_00000001").exists()


@pytest.mark.parametrize("host", [{1: "one"}, {"nan": float("nan")}, {"large": 2**64}])
def test_host_state_that_json_would_change_is_refused(tmp_path, host):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        with pytest.raises(ValueError):
            checkpoints.save(1, tiny_state(1.0), host)


SAVER = """
import sys
import jax.numpy as jnp
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.state import TrainState

with Checkpoints(sys.argv[1], 2, lambda *a, **k: None) as checkpoints:
    for step in range(1, 10_000):
        value = jnp.full((64, 1024), step, jnp.float32)
        state = TrainState({"w_DD": value}, (-value,), jnp.asarray(step, jnp.int32))
        checkpoints.save(step, state, {"step": step})
        print(step, flush=True)
"""


@pytest.mark.heavy
def test_a_saver_killed_at_any_moment_leaves_a_checkpoint_that_is_whole(tmp_path):
    moments = random.Random(0)
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        begun = [int(process.stdout.readline()) for _ in range(3)][-1]
        time.sleep(moments.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        begun = [begun, *map(int, process.stdout.read().split())][-1]
        process.wait()

        zero = jnp.zeros((64, 1024), jnp.float32)
        target = TrainState({"w_DD": zero}, (zero,), jnp.asarray(0, jnp.int32))
        events = Events()
        with Checkpoints(folder, 2, events.record) as checkpoints:
            step, state, host = checkpoints.restore_latest(target)
            assert events == [], "a cut-off save is not a damaged one"
            # A save waits for the one before it: only the last begun may be missing (or the one
            # after it have begun without being told yet).
            assert begun - 1 <= step <= begun + 1 and host == {"step": step}
            assert int(state.step) == step
            np.testing.assert_array_equal(state.params["w_DD"], np.full((64, 1024), step))
            np.testing.assert_array_equal(state.opt_state[0], np.full((64, 1024), -step))
            # What the dead one left behind does not stand in the way.
            checkpoints.save(step + 1, state, {})


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk: sudo python -m pytest tests/learn")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.heavy
def test_a_full_disk_is_said_and_the_checkpoint_before_stands(small_disk):
    checkpoints = Checkpoints(small_disk, 2, Events().record)
    checkpoints.save(1, tiny_state(1.0), {})
    key = jax.random.key(0)
    noise = jax.random.normal(key, (1024, 1024))  # 4 MiB that do not compress
    with pytest.raises(OSError, match="could not be written"):
        checkpoints.save(2, TrainState({"w_DD": noise}, (), jnp.zeros((), jnp.int32)), {})
        checkpoints.wait()
    step, state, _ = checkpoints.restore_latest(tiny_state(0.0))
    assert step == 1
    assert_same(state, tiny_state(1.0))
    checkpoints.close()


def test_a_save_that_failed_is_known_and_does_not_prevent_the_next(tmp_path, monkeypatch):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {})
        checkpoints.wait()
        assert not checkpoints.has_failed()
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_digests", lambda *_: (tmp_path / "none").read_bytes())
            checkpoints.save(2, tiny_state(2.0), {})
            while not checkpoints.has_failed():
                time.sleep(0.01)
        with pytest.raises(OSError, match="could not be written"):
            checkpoints.wait()
        assert not checkpoints.has_failed()
        checkpoints.save(2, tiny_state(3.0), {})
        checkpoints.wait()
        step, state, _ = checkpoints.restore_latest(tiny_state(0.0))
    assert step == 2
    assert_same(state, tiny_state(3.0))


def test_a_save_that_failed_once_it_was_complete_is_not_made_again(tmp_path):
    def on_full_disk(*event, **fields):
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints = Checkpoints(tmp_path, 2, on_full_disk)
    checkpoints.save(1, tiny_state(1.0), {})
    with pytest.raises(OSError, match="could not be written"):
        checkpoints.wait()
    checkpoints.save(1, tiny_state(1.0), {})
    checkpoints.close()
    assert (tmp_path / "step_00000001" / MANIFEST_FILE).exists()


def test_a_step_that_is_saved_is_not_saved_again(tmp_path):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(1, tiny_state(1.0), {})
        with pytest.raises(AssertionError, match="saved already"):
            checkpoints.save(1, tiny_state(2.0), {})


def test_the_manifest_names_format_step_and_every_file(tmp_path):
    with Checkpoints(tmp_path, 2, Events().record) as checkpoints:
        checkpoints.save(4, tiny_state(1.0), {})
    folder = tmp_path / "step_00000004"
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    assert (manifest["format"], manifest["step"]) == (2, 4)
    assert manifest["state"] == "state_00000000"
    there = {str(p.relative_to(folder)) for p in files_of(folder)} - {MANIFEST_FILE}
    assert set(manifest["files"]) == there
