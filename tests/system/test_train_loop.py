"""The train loop where it waits, and where updates come to nothing."""

import contextlib
import dataclasses
import queue
from types import MappingProxyType

import numpy as np
import pytest

from ale_jax.data.journal import Journal
from ale_jax.data.staleness import Drop, StalenessGate
from ale_jax.errors import RunFailed
from ale_jax.learn.critics import CRITIC_SKIPPED, CRITICS_BROKEN, CRITICS_WITHOUT_UPDATE
from ale_jax.learn.finite import BROKEN, SKIPPED
from ale_jax.system.group_feed import FAILED_STEPS, GroupFeed, take_groups
from ale_jax.system.rollouts.pool import PLACES, Load
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from ale_jax.system.tasks import Cursor, GroupStream
from ale_jax.system.train_loop import train_loop
from tests.data.make_trajectories import make_trajectory, make_turn
from tests.system.in_process import Callbacks, FromTheStart, run_config


class FailingRollouts:
    """In place of a buffer: each wait ends with `count` groups that had no valid episode."""

    def __init__(self, gate, count, good_after=None):
        self._gate, self._count, self._good_after, self._waits = gate, count, good_after, 0

    def take(self, timeout):
        self._waits += 1
        for group in range(self._count):
            self._gate.admit(group)
            self._gate.drop(group, Drop.FAILED)
        return ["a step's groups"] if self._waits == self._good_after else []


def _nothing():
    pass


def test_a_run_in_which_nothing_can_be_judged_ends_and_says_why():
    gate = StalenessGate(alpha=0.0, groups_per_step=2)
    with pytest.raises(RuntimeError, match=r"no episode that could be judged.*malformed_limit"):
        take_groups(FailingRollouts(gate, count=2), _nothing, gate)
    assert gate.counts()["dropped_failed"] == 2 * (FAILED_STEPS + 1)
    # Those of the steps before are not held against the next one.
    assert take_groups(FailingRollouts(gate, 2, good_after=FAILED_STEPS), _nothing, gate)


def test_groups_that_a_checkpoint_left_open_are_still_open_until_they_are_asked_for():
    stream = GroupStream(Cursor(groups=(10, 11, 13), next_groups=(14,)))
    assert (stream.take(0), stream.left_open, stream.next_groups) == (10, (11, 13), (14,))
    assert [stream.take(0) for _ in range(3)] == [11, 13, 14]
    assert (stream.left_open, stream.next_groups) == ((), (15,))


def test_each_domain_has_a_stream_of_its_own():
    """Domain 1 has the groups 1, 4, 7, ...; of domain 0, groups were replaced."""
    cursor = Cursor(groups=(4, 6, 9), next_groups=(11, 5), round=(0, 1, 0))
    assert [group for group in range(14) if cursor.is_open(group)] == [4, 6, 7, 9, 10, 11, 12, 13]
    stream = GroupStream(cursor)
    assert [stream.take(1) for _ in range(3)] == [4, 7, 10]
    assert [stream.take(0) for _ in range(4)] == [6, 9, 11, 12]
    assert stream.next_groups == (13, 11)


class PlayedEpisodes:
    """In place of rollout workers: every episode is over as soon as it is asked for."""

    free_places = 8
    loads = MappingProxyType({PLACES: Load(8, 0, 0)})

    def __init__(self):
        self.version, self._played = 0, queue.Queue()

    def publish(self, version):
        self.version = version

    def submit(self, request, sampling):
        turns = [make_turn([1], [2, 3], version=self.version)]
        played = make_trajectory(request.key.group, request.key.member, turns)
        self._played.put(dataclasses.replace(played, start_version=self.version))

    def results(self, timeout):
        with contextlib.suppress(queue.Empty):
            yield self._played.get(timeout=timeout)

    def start_versions(self):
        return {}

    def abandon(self, groups):
        pass


class SlowEpisodes(PlayedEpisodes):
    """The first group's episodes come back after a second in which the second step has not been
    made, although there is enough for it, or never."""

    def __init__(self, ends):
        super().__init__()
        self._ends, self._held, self._silent, self.abandoned = ends, [], 0, []

    def submit(self, request, sampling):
        if request.key.group:
            super().submit(request, sampling)
        else:
            self._held.append((request, sampling))

    def results(self, timeout):
        came = list(super().results(timeout))
        self._silent = 0 if came or self.version == 0 else self._silent + 1
        if self._ends and self._silent * RolloutScheduler.POLL > 1.0:
            while self._held:
                super().submit(*self._held.pop())
        return came

    def start_versions(self):
        return {} if self.abandoned else {0: 0}

    def abandon(self, groups):
        self.abandoned += groups


class StepsOf:
    """In place of the learner: its steps end with these sums and figures."""

    def __init__(self, steps):
        self._steps = iter(steps)

    def learn(self, groups, imitated, version):
        sums, figures = next(self._steps)
        return None, [sums], dict(figures)

    def learning_rate(self):
        return 0.1

    def logp(self, version, batch):
        return np.zeros_like(batch.logp_mu_BT)


def reports_of(steps, folder, workers=None, **rl):
    """The reports of a run whose learner's steps end so."""
    reports = []
    rl = {"alpha": 0.0, "groups_per_step": 2, "group_size": 2} | rl
    config = run_config(len(steps), rl=rl)
    workers, learner = workers or PlayedEpisodes(), StepsOf(steps)
    callbacks = Callbacks(workers.publish, reports.append, lambda cursor, resampling: None)
    with (
        Journal(folder, lambda *_, **__: None) as journal,
        RolloutScheduler(workers, _nothing) as scheduler,
    ):
        cursor, resampler = Cursor(), FromTheStart(2)
        feed = GroupFeed(config, cursor, scheduler, resampler, journal, callbacks.note_dropped)
        train_loop(cursor, config, learner, feed, resampler, callbacks)
    return reports


GOOD_CRITICS = {CRITICS_WITHOUT_UPDATE: 0, CRITICS_BROKEN: 0}
IDLE_CRITICS = GOOD_CRITICS | {CRITICS_WITHOUT_UPDATE: 1}


@pytest.mark.parametrize(
    ("skipped", "remedy"),
    [
        (({SKIPPED: True}, {}), "rl_optimizer"),
        (({SKIPPED: False}, IDLE_CRITICS), r"critics\.optimizer"),
    ],
)
def test_updates_that_are_not_finite_again_and_again_end_the_run(tmp_path, skipped, remedy):
    with pytest.raises(RunFailed, match=rf"step 3: 3 .* in a row .*{remedy}"):
        reports_of([skipped] * 6, tmp_path)


@pytest.mark.parametrize(
    ("broken", "remedy"),
    [
        (({SKIPPED: False, BROKEN: True}, {}), "rl_optimizer"),
        (({SKIPPED: False}, GOOD_CRITICS | {CRITICS_BROKEN: 1}), r"critics\.optimizer"),
    ],
)
def test_weights_that_are_not_finite_end_the_run(tmp_path, broken, remedy):
    good = ({SKIPPED: False}, GOOD_CRITICS)
    with pytest.raises(RunFailed, match=rf"step 2: the weights are not finite.*{remedy}"):
        reports_of([good, broken], tmp_path)


@pytest.mark.parametrize(("stragglers", "abandoned"), [("wait", []), ("drop", [0])])
def test_a_step_waits_for_a_slow_group_or_it_is_dropped(tmp_path, stragglers, abandoned):
    workers, step = SlowEpisodes(ends=stragglers == "wait"), ({SKIPPED: False}, {})
    reports = reports_of([step] * 4, tmp_path, workers, alpha=1.0, stragglers=stragglers)
    trained = [group.index for report in reports for group in report.groups]
    assert workers.abandoned == abandoned
    assert (0 in trained) == (stragglers == "wait"), trained
    assert sum(report.cursor.dropped_stale for report in reports[-1:]) == 2 * len(abandoned)


@pytest.mark.heavy
def test_updates_that_are_not_finite_once_in_a_while_do_not(tmp_path):
    good = ({SKIPPED: False}, GOOD_CRITICS | {CRITIC_SKIPPED: 1})
    bad = ({SKIPPED: True}, IDLE_CRITICS | {CRITIC_SKIPPED: 2})
    reports = reports_of([bad, bad, good, bad, bad, good], tmp_path)
    assert [report.cursor.step for report in reports] == [1, 2, 3, 4, 5, 6]
    assert [report.extra[CRITIC_SKIPPED] for report in reports] == [2, 2, 1, 2, 2, 1]
    assert [group.index for report in reports for group in report.groups] == list(range(12))
