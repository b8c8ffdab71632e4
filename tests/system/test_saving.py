"""What is on the disk at each moment of a save, if the process is killed there."""

import contextlib
import shutil
from types import SimpleNamespace

import pytest

from ale_jax.config.engine import Sampling
from ale_jax.data.journal import Journal
from ale_jax.data.staleness import StalenessGate
from ale_jax.records import RolloutRequest
from ale_jax.system.saving import Saver
from ale_jax.system.tasks import Cursor
from tests.data.make_trajectories import make_trajectory
from tests.system.configs import smoke_config


def _ignore(kind, detail, **fields):
    pass


class SlowCheckpoints:
    """A save is durable when the next one waits for it, and not earlier.

    failures: how many of the next saves cannot be written.
    """

    def __init__(self):
        self._begun, self.durable, self.looks = None, None, []
        self.failures, self._fails = 0, False

    def has_failed(self):
        return self._fails

    def wait(self):
        if self._fails:
            self._fails = False
            raise OSError("the disk was full")
        self.durable = self._begun

    def save(self, step, state, host):
        self._fails, self.failures = self.failures > 0, max(self.failures - 1, 0)
        self._begun = Cursor.restore(host)
        self.looks.append(self.durable and self.look())


def test_the_journal_keeps_what_the_newest_durable_checkpoint_needs(tmp_path):
    folder, checkpoints = tmp_path / "journal", SlowCheckpoints()

    def look():
        """The groups of which a run that is resumed now finds an episode."""
        copy = tmp_path / str(len(checkpoints.looks))
        shutil.copytree(folder, copy)
        cursor, found = checkpoints.durable, []
        with Journal(copy, _ignore) as journal:
            recalled = journal.recall(range(cursor.step + 1), cursor.is_open, Sampling())
        for group in range(5):
            request = RolloutRequest(make_trajectory(group, 0).episode.key)
            found += recalled.take([request], StalenessGate(3, 2, version=cursor.step))
        return [trajectory.episode.key.group for trajectory in found]

    checkpoints.look = look
    trainer = SimpleNamespace(updates=0)
    config = smoke_config(checkpoint={"every": 1}, rl={"steps": 9})
    with Journal(folder, _ignore) as journal:
        saver = Saver(checkpoints, journal, config, trainer, Cursor(), _ignore)
        for step, groups, first in ((0, (), 0), (1, (0, 1), 2), (2, (2,), 3), (3, (), 4)):
            saver.save(Cursor(step, groups, (first,)), lambda: None)
            journal.append(make_trajectory(step, 0))
        saver.save(Cursor(4, (), (4,)), lambda: None)
    # In the save after step 2, that of step 1 is durable, and so on.
    assert checkpoints.looks == [None, [0], [0, 1], [2], []]


@contextlib.contextmanager
def _saving(folder, every, record=_ignore):
    """A saver, its checkpoints and its trainer."""
    checkpoints, trainer = SlowCheckpoints(), SimpleNamespace(updates=0)
    checkpoints.look = lambda: None
    config = smoke_config(checkpoint={"every": every}, rl={"steps": 99})
    with Journal(folder / "journal", _ignore) as journal:
        yield Saver(checkpoints, journal, config, trainer, Cursor(), record), checkpoints, trainer


def test_a_state_that_the_next_step_has_changed_is_not_saved_as_the_last_one(tmp_path):
    with _saving(tmp_path, every=5) as (saver, checkpoints, trainer):
        saver.save(Cursor(1), lambda: None)
        trainer.updates += 1  # and then the rollouts fail
        saver.save_newest()
        assert checkpoints.looks == []
        saver.save(Cursor(2), lambda: None)
        saver.save_newest()
    assert len(checkpoints.looks) == 1


def test_a_step_is_finished_only_when_there_is_a_checkpoint_to_resume_from(tmp_path):
    with _saving(tmp_path, every=5) as (saver, checkpoints, _):
        saver.save(Cursor(), lambda: None)
        assert checkpoints.durable is None  # it is written while the policy is evaluated
        saver.save(Cursor(1), lambda: None)
    assert checkpoints.durable == Cursor()


@pytest.fixture
def rig(tmp_path):
    """A run that has a checkpoint of step 0."""
    events = []
    record = lambda kind, detail: events.append((kind, detail))  # noqa: E731
    with _saving(tmp_path, every=20, record=record) as (saver, checkpoints, _):
        saver.save(Cursor(), lambda: None)
        saver.save(Cursor(1), lambda: None)
        yield saver, checkpoints, events


FAILED = ("checkpoint_failed", "the disk was full")


def test_a_save_that_failed_is_said_and_made_up_for_at_the_next_step(rig):
    saver, checkpoints, events = rig
    checkpoints.failures = 1
    saver.save(Cursor(20), lambda: None)
    assert events == []
    saver.save(Cursor(21), lambda: None)
    assert events == [FAILED] and checkpoints.durable == Cursor(21)
    saver.save(Cursor(22), lambda: None)
    assert checkpoints.durable == Cursor(21)


def test_two_saves_that_fail_end_the_run(rig):
    saver, checkpoints, events = rig
    checkpoints.failures = 2
    saver.save(Cursor(20), lambda: None)
    with pytest.raises(OSError, match="full"):
        saver.save(Cursor(21), lambda: None)
    assert events == [FAILED] and checkpoints.durable == Cursor()


@pytest.mark.parametrize("newest", [20, 21])
def test_a_run_that_is_stopped_after_a_save_failed_loses_no_step(rig, newest):
    saver, checkpoints, events = rig
    checkpoints.failures = 1
    saver.save(Cursor(20), lambda: None)
    if newest == 21:  # the failure becomes known only after it
        checkpoints.has_failed = lambda: False
        saver.save(Cursor(21), lambda: None)
    saver.save_newest()
    assert events == [FAILED] and checkpoints.durable == Cursor(newest)


@pytest.mark.heavy
def test_what_the_checkpoint_before_needs_of_the_journal_survives_a_save_that_failed(rig):
    saver, checkpoints, _ = rig
    saver._journal.append(make_trajectory(0, 0))  # open at step 0, closed at step 20
    checkpoints.failures = 2
    saver.save(Cursor(20, (), (1,)), lambda: None)
    with pytest.raises(OSError, match="full"):
        saver.save(Cursor(21, (), (1,)), lambda: None)
    frames = saver._journal._folder.glob("*.frames")
    assert any(each.stat().st_size for each in frames)
