"""A run that is killed goes on with the queue that it had.

The queue is filled before every step, so ages are exactly alpha, and no number depends on time. A
run that goes on from its journal therefore ends with the very weights of an unbroken one, also if
it is asynchronous.
"""

import dataclasses
import signal
import subprocess
from contextlib import closing

import jax
import numpy as np
import pytest

from ale_jax.data.journal import Journal
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.monitor.events import read_events
from ale_jax.monitor.schedule import read_schedule
from ale_jax.system.saving import Saver
from ale_jax.system.step_metrics import step_metrics
from ale_jax.system.tasks import Cursor
from ale_jax.system.trainer import STATE, TrainerFiles
from tests.system.in_process import Run, run_config, train
from tests.system.untimed import TIME_PREFIX, rl_lines
from tests.system.whole_runs import command, environment, interrupt, last_state, run

pytestmark = pytest.mark.slow

STEPS = 6
RL = {"alpha": 2.0, "fill_queue": True, "groups_per_step": 2, "group_size": 4}
WITHOUT_SANDBOXES = [
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.rl.alpha=2.0",
    "--config.rl.fill_queue=True",
    "--config.rl.steps=6",
]


class Killed(Exception):
    pass


class Lives:
    """A run with a folder, whose process may be killed several times."""

    def __init__(self, folder, every, **sections):
        self._folder, self._every, self._sections = folder, every, sections
        self.events, self.reports = [], {}

    def live(self, killed_after=None, updates=None):
        """Trains from the newest checkpoint to the end, or until a step has been published, or
        until this life has made so many updates."""
        sections = {"rl": RL, "checkpoint": {"every": self._every}} | self._sections
        run, cursor = Run(run_config(STEPS, **sections)), Cursor()

        def report(step):
            self.reports[step.cursor.step] = step
            if step.cursor.step == killed_after:
                raise Killed

        with (
            closing(TrainerFiles()) as files,
            Checkpoints(self._folder / "checkpoints", 2, self._record, files) as checkpoints,
            Journal(self._folder / "journal", self._record) as journal,
        ):
            files.trainer = run.trainer
            if found := checkpoints.restore_latest(STATE):
                _, _, host = found
                cursor = Cursor.restore(host)
            saver = Saver(checkpoints, journal, run.config, run.trainer, cursor, self._record)
            if not found:
                saver.save(cursor, lambda: None)
            make = run.trainer.update

            def update(batches, loss_denominator):
                if run.trainer.updates == updates:
                    raise Killed
                return make(batches, loss_denominator=loss_denominator)

            run.trainer.update = update
            run.train(cursor, journal, report, saver.save)
        return run.trainer.state

    def _record(self, kind, detail, **fields):
        self.events.append({"kind": kind, "detail": detail} | fields)

    def recalled(self):
        return sum(e["recalled"] for e in self.events if e["kind"] == "journal_recalled")


def untimed(report):
    return {k: v for k, v in step_metrics(report).items() if not k.startswith(TIME_PREFIX)}


def trained_groups(reports):
    return [[group.index for group in report.groups] for report in reports]


@pytest.fixture(scope="module")
def unbroken():
    _, state, reports = train(STEPS, rl=RL)
    return state, reports


@pytest.mark.parametrize(
    ("every", "killed_after", "recalled"),
    [
        (3, (4,), 16),  # four whole groups wait; what weights 4 sampled is lost with them
        (2, (3, 5), 32),
    ],
)
def test_a_killed_asynchronous_run_ends_like_an_unbroken_one(
    unbroken, tmp_path, every, killed_after, recalled
):
    expected, reports = unbroken
    lives = Lives(tmp_path, every)
    for step in killed_after:
        with pytest.raises(Killed):
            lives.live(step)
    state = lives.live()
    made = [lives.reports[step + 1] for step in range(STEPS)]
    assert lives.recalled() >= recalled
    assert trained_groups(made) == trained_groups(reports) == [[2 * i, 2 * i + 1] for i in range(6)]
    assert any(report.updates for report in reports), "nothing was learned"
    assert list(map(untimed, made)) == list(map(untimed, reports))
    jax.tree.map(np.testing.assert_array_equal, state, expected)


def test_a_run_that_is_killed_between_two_updates_of_a_step_ends_like_an_unbroken_one(tmp_path):
    several = {"learn": {"epochs": 2, "minibatches": 2}}
    _, expected, reports = train(STEPS, rl=RL, **several)
    made = np.cumsum([len(report.updates) for report in reports])
    assert (np.diff(made) > 1).any(), "no step had several updates"
    step = int(np.argmax(np.diff(made) > 1)) + 2
    lives = Lives(tmp_path, every=1, **several)
    with pytest.raises(Killed):
        lives.live(updates=made[step - 1] - 1)
    assert max(lives.reports) == step - 1
    state = lives.live()
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert [untimed(lives.reports[number + 1]) for number in range(STEPS)] == list(
        map(untimed, reports)
    )


def test_without_its_journal_a_run_plays_its_queue_again(tmp_path):
    lives = Lives(tmp_path, every=1)
    with pytest.raises(Killed):
        lives.live(3)
    for segment in (tmp_path / "journal").iterdir():
        segment.unlink()
    lives.live()
    ages = [step_metrics(lives.reports[step + 1])["staleness_max"] for step in range(STEPS)]
    assert ages == [0, 1, 2, 0, 1, 2]
    assert lives.recalled() == 0


def test_the_learner_gets_nothing_of_weights_that_it_has_no_more(tmp_path):
    """pi_old of the generating version is recomputed, and only the restored version is there."""
    lives = Lives(tmp_path, every=1, algo={"old_logp": "generating"})
    with pytest.raises(Killed):
        lives.live(3)
    lives.live()
    ages = [step_metrics(lives.reports[step + 1])["staleness_max"] for step in range(STEPS)]
    assert ages == [0, 1, 2, 0, 1, 2]


def test_a_process_that_is_killed_loses_no_finished_episode(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, "auto", *WITHOUT_SANDBOXES)
    process = subprocess.Popen(
        command(killed, "auto", *WITHOUT_SANDBOXES),
        env=environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # what is done to its group is not done to ours
        stderr=subprocess.DEVNULL,
    )
    interrupt(process, killed, signal.SIGKILL, step=3)
    process.wait(30)
    run(killed, "auto", *WITHOUT_SANDBOXES)
    events = read_events(killed / "events.jsonl").records
    recalled = [event.fields for event in events if event.kind == "journal_recalled"]
    assert sum(each["recalled"] for each in recalled) >= 4 * 2, "four groups of two waited"
    assert rl_lines(killed) == rl_lines(whole)
    jax.tree.map(np.testing.assert_array_equal, last_state(killed, 6), last_state(whole, 6))
    schedules = [_schedule(each) for each in (killed, whole)]
    assert schedules[0] == schedules[1]
    trained = [group.index for step in schedules[0] for group in step]
    assert trained == list(range(6 * 2))


def _schedule(workdir):
    """Without the order of admission, which is counted anew when a run is resumed."""
    steps = read_schedule(workdir / "schedule.jsonl").records
    return [[dataclasses.replace(g, order=0, version=0) for g in step.groups] for step in steps]
