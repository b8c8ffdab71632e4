"""The leader's log and a follower that executes it, in one process, with a target that counts."""

import errno
import os
import queue
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ale_jax.errors import RunFailed
from ale_jax.learn.manifest import file_digests
from ale_jax.system.hosts import follower as follower_module
from ale_jax.system.hosts import leader as leader_module
from ale_jax.system.hosts.commands import COMMANDS, command
from ale_jax.system.hosts.connection import Connection
from ale_jax.system.hosts.follower import follow
from ale_jax.system.hosts.leader import Leader

ROWS = {0: np.array([0, 1]), 1: np.array([2, 3])}


@pytest.fixture(scope="module", autouse=True)
def commands():
    """Commands of a toy, beside those of the trainer."""
    before = dict(COMMANDS)

    class Toy:
        mesh = None

        def __init__(self, processes, process):
            self.processes, self.process, self.seen = processes, process, []

        @command()
        def toy_add(self, amount):
            self.seen.append(amount)
            return sum(self.seen)

        @command(rows=True)
        def toy_double(self, batches):
            self.seen.append([_own(b.tokens_BT, self.process).tolist() for b in batches])
            return [2 * _own(b.tokens_BT, self.process) for b in batches]

        @command(forgets=True)
        def toy_forget(self):
            pass

    yield Toy
    COMMANDS.clear()
    COMMANDS.update(before)


def _own(array, process):
    return array.own if process else array[ROWS[0]]


class Run:
    def __init__(self, monkeypatch, toy):
        monkeypatch.setattr(leader_module, "process_rows", lambda mesh, rows, n: ROWS[n])
        ours, theirs = map(Connection, socket.socketpair())
        others = map(Connection, socket.socketpair())  # of conversations
        self.leader = Leader({1: (ours, next(others))}, "127.0.0.1")
        self.ended = queue.Queue()
        self.follower = toy(None, 1)
        self.target = toy(self.leader, 0)
        self._thread = threading.Thread(target=self._follow, args=(theirs,), daemon=True)
        self._thread.start()
        self.leader.begin(320, None, 4)

    def _follow(self, connection):
        try:
            self.ended.put(follow(connection, self))
        except ValueError as error:
            self.ended.put(error)

    def begin(self, tokenizer_size):
        assert tokenizer_size == 320
        self.trainer = self.follower


@pytest.fixture
def run(monkeypatch, commands):
    return Run(monkeypatch, commands)


def _batch():
    return SimpleNamespace(tokens_BT=np.arange(8).reshape(4, 2), version_BT=None)


def test_all_processes_make_the_same_calls_in_one_order(run):
    assert [run.target.toy_add(amount=each) for each in (3, 5, 2)] == [3, 8, 10]
    run.leader.end(0)
    assert run.ended.get(timeout=60) == 0
    assert run.follower.seen == [3, 5, 2]


def test_each_gets_its_own_rows_and_the_first_one_all_results(run):
    (found,) = run.target.toy_double([_batch()])
    np.testing.assert_array_equal(found, 2 * np.arange(8).reshape(4, 2))
    assert run.target.seen == [[[[0, 1], [2, 3]]]]
    assert run.follower.seen == [[[[4, 5], [6, 7]]]]
    run.leader.end(0)


def test_rows_are_sent_once_until_they_are_forgotten(run):
    batch, sent = _batch(), []
    for _ in range(3):
        before = run.leader.traffic()[0].sent
        np.testing.assert_array_equal(run.target.toy_double([batch])[0], 2 * batch.tokens_BT)
        sent.append(run.leader.traffic()[0].sent - before)
    own = batch.tokens_BT[ROWS[1]].nbytes
    assert run.leader.traffic()[0].rows == own
    assert sent[0] - sent[1] >= own and sent[1] == sent[2]
    run.target.toy_forget()
    before = run.leader.traffic()[0].sent
    run.target.toy_double([batch])
    assert run.leader.traffic()[0].sent - before >= own + sent[1]
    assert run.follower.seen == 4 * [[[[4, 5], [6, 7]]]]
    run.leader.end(0)


@pytest.mark.heavy
def test_an_error_after_a_loss_is_the_loss():
    ours, theirs = socket.socketpair()
    conversations = Connection(socket.socketpair()[0])
    leader = Leader({1: (Connection(ours), conversations)}, "127.0.0.1")
    error = RuntimeError("Gloo AllGather failed: Connection reset by peer")
    leader.blame_loss(error)  # nobody is lost: it stays what it is
    theirs.close()
    with pytest.raises(RunFailed, match="process 1 of this run is lost") as failed:
        leader.blame_loss(error)
    assert failed.value.__cause__ is error
    leader.end(2)


@pytest.fixture
def checkpoint(tmp_path):
    """As two processes write it."""
    for name in ("ocdbt.process_0/d", "ocdbt.process_1/d", "manifest.ocdbt", "ocdbt.process_3/d"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_each_process_hashes_the_files_that_it_wrote(run, checkpoint, monkeypatch):
    shares, real = {}, file_digests

    def hashed(folder, process, processes):
        found = real(folder, process, processes)
        shares[process] = set(found)
        return found

    monkeypatch.setattr(leader_module, "file_digests", hashed)
    monkeypatch.setattr(follower_module, "file_digests", hashed)
    assert run.leader.digests(checkpoint) == file_digests(checkpoint)
    assert shares == {
        0: {"ocdbt.process_0/d", "manifest.ocdbt"},
        1: {"ocdbt.process_1/d", "ocdbt.process_3/d"},  # one that four processes have written
    }
    run.leader.end(0)


def test_a_file_that_a_follower_cannot_read_is_an_error_of_the_first_process(
    run, checkpoint, monkeypatch
):
    def broken(folder, process, processes):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder / "ocdbt.process_1/d"))

    monkeypatch.setattr(follower_module, "file_digests", broken)
    with pytest.raises(OSError, match="process_1/d") as error:
        run.leader.digests(checkpoint)
    assert error.value.errno == errno.EIO
    assert run.target.toy_add(amount=3) == 3, "the run goes on"
    run.leader.end(0)


def test_an_error_leaves_no_answer_of_another_process_behind(checkpoint, tmp_path, monkeypatch):
    pairs = {n: [socket.socketpair() for _ in range(2)] for n in (1, 2)}
    ends = {n: tuple(Connection(ours) for ours, _ in both) for n, both in pairs.items()}
    leader = Leader(ends, "127.0.0.1")
    for (_, theirs), _ in pairs.values():
        threading.Thread(target=follow, args=(Connection(theirs), None), daemon=True).start()

    def broken_once(folder, process, processes):
        if process == 1:
            monkeypatch.undo()
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        return file_digests(folder, process, processes)

    monkeypatch.setattr(follower_module, "file_digests", broken_once)
    with pytest.raises(OSError, match="Input/output"):
        leader.digests(checkpoint)
    other = tmp_path / "ocdbt.process_2"
    other.mkdir()
    (other / "d").write_text("new")
    assert leader.digests(checkpoint) == file_digests(checkpoint)
    leader.end(0)


def test_a_follower_that_cannot_go_on_ends_the_run(run, monkeypatch):
    monkeypatch.setattr(leader_module, "LEAVE_S", 60.0)  # this process is not to be ended

    def fail(*_):
        raise ValueError("the disk is full")

    run.follower.seen = SimpleNamespace(append=fail)
    run.target.toy_add(amount=1)
    assert isinstance(run.ended.get(timeout=60), ValueError)
    with pytest.raises(RunFailed, match=r"process 1 of this run failed \(ValueError: the disk is"):
        while True:
            run.leader.check()
    run.leader.end(2)
    run.leader._leave()  # its timer may come late: it must not end a process that ends by itself
