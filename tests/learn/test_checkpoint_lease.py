"""A checkpoint of a process whose lease was lost while it wrote."""

import dataclasses
import threading

import pytest

from ale_jax.errors import RunFailed
from ale_jax.learn.checkpoint import Checkpoints, OrbaxFiles
from ale_jax.learn.manifest import state_folder
from tests.learn.test_checkpoint import Events, assert_same, files_of, tiny_state


class SleepingFiles(OrbaxFiles):
    """As if the process were stopped between a call and what Orbax does in the background."""

    def __init__(self):
        super().__init__()
        self.woken = threading.Event()

    def write(self, folder, state):
        self.waiting = folder, state

    def wait(self):
        self.woken.wait()
        super().write(*self.waiting)
        super().wait()


@dataclasses.dataclass
class FakeLease:
    number: int
    is_lost: bool = False

    def check(self):
        if self.is_lost:
            raise RunFailed("another process has taken over")


def test_a_save_that_wakes_up_after_its_lease_was_lost_changes_nothing(tmp_path):
    sleeping, lease = SleepingFiles(), FakeLease(2)
    stopped = Checkpoints(tmp_path, 2, Events().record, sleeping, lease)
    stopped.save(4, tiny_state(1.0), {"who": "stopped"})
    lease.is_lost = True
    with Checkpoints(tmp_path, 2, Events().record, None, FakeLease(3)) as new:
        new.save(4, tiny_state(2.0), {"who": "new"})
        new.wait()
        folder = tmp_path / "step_00000004"
        before = {path: path.read_bytes() for path in files_of(folder)}
        sleeping.woken.set()
        with pytest.raises(RunFailed, match="taken over"):
            stopped.close()
        assert (folder / "state_00000002").exists(), "it was written in vain"
        assert state_folder(folder) == folder / "state_00000003"
        assert {path: path.read_bytes() for path in before} == before
        step, state, host = new.restore_latest(tiny_state(0.0))
    assert (step, host) == (4, {"who": "new"})
    assert_same(state, tiny_state(2.0))
    sleeping.close()
