"""What is on the disk at each moment of a save, if the process is killed there."""

import shutil
from types import SimpleNamespace

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
    """A save is durable when the next one waits for it, and not earlier."""

    def __init__(self):
        self._begun, self.durable, self.looks = None, None, []

    def wait(self):
        self.durable = self._begun

    def save(self, step, state, host):
        self._begun = Cursor(**host)
        self.looks.append(self.durable and self.look())


def test_the_journal_keeps_what_the_newest_durable_checkpoint_needs(tmp_path):
    folder, checkpoints = tmp_path / "journal", SlowCheckpoints()

    def look():
        """The groups of which a run that is resumed now finds an episode."""
        copy = tmp_path / str(len(checkpoints.looks))
        shutil.copytree(folder, copy)
        cursor, found = checkpoints.durable, []
        with Journal(copy, _ignore) as journal:
            recalled = journal.recall(range(cursor.step + 1), cursor.is_open)
        for group in range(5):
            request = RolloutRequest(make_trajectory(group, 0).episode.key)
            found += recalled.take([request], StalenessGate(3, 2, version=cursor.step))
        return [trajectory.episode.key.group for trajectory in found]

    checkpoints.look = look
    trainer = SimpleNamespace(updates=0)
    config = smoke_config(checkpoint={"every": 1}, rl={"steps": 9})
    with Journal(folder, _ignore) as journal:
        saver = Saver(checkpoints, journal, config, trainer, Cursor())
        for step, open_groups, next_group in ((0, (), 0), (1, (0, 1), 2), (2, (2,), 3), (3, (), 4)):
            saver.save(Cursor(step, open_groups, next_group), lambda: None)
            journal.append(make_trajectory(step, 0))
        saver.save(Cursor(4, (), 4), lambda: None)
    # In the save after step 2, that of step 1 is durable, and so on.
    assert checkpoints.looks == [None, [0], [0, 1], [2], []]


def test_a_state_that_the_next_step_has_changed_is_not_saved_as_the_last_one(tmp_path):
    checkpoints, trainer = SlowCheckpoints(), SimpleNamespace(updates=1)
    checkpoints.look = lambda: None
    config = smoke_config(checkpoint={"every": 5}, rl={"steps": 9})
    with Journal(tmp_path / "journal", _ignore) as journal:
        saver = Saver(checkpoints, journal, config, trainer, Cursor())
        saver.save(Cursor(1), lambda: None)
        trainer.updates += 1  # and then the rollouts fail
        saver.save_newest()
        assert checkpoints.looks == []
        saver.save(Cursor(2), lambda: None)
        saver.save_newest()
    assert len(checkpoints.looks) == 1


def test_a_step_is_finished_only_when_there_is_a_checkpoint_to_resume_from(tmp_path):
    checkpoints, trainer = SlowCheckpoints(), SimpleNamespace(updates=0)
    checkpoints.look = lambda: None
    config = smoke_config(checkpoint={"every": 5}, rl={"steps": 9})
    with Journal(tmp_path / "journal", _ignore) as journal:
        saver = Saver(checkpoints, journal, config, trainer, Cursor())
        saver.save(Cursor(), lambda: None)
        assert checkpoints.durable is None  # it is written while the policy is evaluated
        saver.save(Cursor(1), lambda: None)
    assert checkpoints.durable == Cursor()
