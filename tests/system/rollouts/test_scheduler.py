"""The rollout loop against rollout workers whose episodes end in the order that a test decides."""

import dataclasses
import itertools
import queue
import threading
from types import SimpleNamespace

import pytest

from ale_jax.config.engine import Sampling
from ale_jax.data.replay import GroupSize, ReplayBuffer
from ale_jax.data.staleness import StalenessGate
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.system.rollouts.loop import Training
from ale_jax.system.rollouts.pool import PLACES, Load
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from tests.data.make_trajectories import make_trajectory, make_turn

LIMIT_S = 20.0
GROUP_SIZE = 2


class HandWorkers:
    """Four places; an episode ends when the test says so."""

    def __init__(self):
        self.begun: queue.Queue[EpisodeKey] = queue.Queue()
        self._ended: queue.Queue[EpisodeKey | BaseException] = queue.Queue()
        self._under_way = 0
        self.starts: dict[int, int] = {}  # as `start_versions` returns it
        self.abandoned: queue.Queue[list[int]] = queue.Queue()

    @property
    def free_places(self):
        return 4 - self._under_way

    @property
    def loads(self):
        return {PLACES: Load(4, self._under_way, waiting=0)}

    def submit(self, request, sampling):
        assert self.free_places > 0
        self._under_way += 1
        self.begun.put(request.key)

    def results(self, timeout):
        try:
            ended = self._ended.get(timeout=timeout)
        except queue.Empty:
            return
        if isinstance(ended, BaseException):
            raise ended
        self._under_way -= 1
        yield _result_of(ended, self.starts.get(ended.group, 0))

    def start_versions(self):
        return dict(self.starts)

    def abandon(self, groups):
        self.abandoned.put(groups)

    # The test's side.

    def next_begun(self):
        return self.begun.get(timeout=LIMIT_S)

    def end(self, key):
        self._ended.put(key)

    def fail(self, error):
        self._ended.put(error)


def _result_of(key, start=0):
    turns = [make_turn([1], [2], reward=1.0, version=start)]
    trajectory = make_trajectory(key.group, key.member, turns, start_version=start)
    episode = dataclasses.replace(trajectory.episode, key=key)
    return dataclasses.replace(trajectory, episode=episode)


def _assign(group):
    task = Task("trail", group, "train")
    return [RolloutRequest(EpisodeKey("train", group, member, task)) for member in range(2)]


def _evaluation(count):
    return [EpisodeKey("eval/final", i, 0, Task("trail", 1000 + i, "eval")) for i in range(count)]


def _counting():
    indices = itertools.count()
    return lambda domain: next(indices)


@pytest.fixture
def rig():
    workers = HandWorkers()
    gate = StalenessGate(alpha=0.0, groups_per_step=2)
    buffer = ReplayBuffer(gate, GroupSize(GROUP_SIZE))
    training = Training(
        gate,
        _counting(),
        _assign,
        lambda requests: [],
        buffer.add,
        buffer.drop_overdue,
        Sampling(),
    )
    with RolloutScheduler(workers, lambda: None) as scheduler:
        yield SimpleNamespace(
            workers=workers, gate=gate, buffer=buffer, training=training, scheduler=scheduler
        )


def test_no_group_is_begun_beyond_the_gate(rig):
    rig.scheduler.train(rig.training)
    begun = [rig.workers.next_begun() for _ in range(4)]
    assert sorted({key.group for key in begun}) == [0, 1]
    for key in reversed(begun):
        rig.workers.end(key)
    groups = rig.buffer.take(timeout=LIMIT_S)
    assert [group.index for group in groups] == [0, 1]
    with pytest.raises(queue.Empty):  # places are free, but there is no permit
        rig.workers.begun.get(timeout=0.2)
    rig.gate.publish(1)
    assert rig.workers.next_begun().group == 2


def test_an_evaluation_by_a_policy_that_has_died_meanwhile_is_none():
    workers, failures = HandWorkers(), []

    def check_policy():
        if failures:
            raise failures[0]

    raised = []
    with RolloutScheduler(workers, check_policy) as scheduler:

        def evaluate():
            try:
                scheduler.evaluate(_evaluation(1), Sampling())
            except RuntimeError as error:
                raised.append(str(error))

        waiter = threading.Thread(target=evaluate)
        waiter.start()
        begun = workers.next_begun()
        failures.append(RuntimeError("no engine any more"))
        workers.end(begun)  # what is told of it says nothing of the policy
        waiter.join(LIMIT_S)
    assert raised == ["no engine any more"]


def test_evaluations_go_first_and_do_not_reach_the_buffer(rig):
    rig.scheduler.train(rig.training)
    first = [rig.workers.next_begun() for _ in range(4)]
    evaluation, results = _evaluation(3), []
    waiter = threading.Thread(
        target=lambda: results.extend(rig.scheduler.evaluate(evaluation, Sampling()))
    )
    waiter.start()
    for key in first[:3]:
        rig.workers.end(key)
    begun = [rig.workers.next_begun() for _ in range(3)]
    assert begun == evaluation
    for key in reversed(begun):
        rig.workers.end(key)
    waiter.join(LIMIT_S)
    assert [t.episode.key for t in results] == evaluation  # in the order given
    assert rig.buffer.take() == []
    rig.workers.end(first[3])
    assert len(rig.buffer.take(timeout=LIMIT_S)) == 2


def test_what_comes_back_after_training_stopped_is_not_kept(rig):
    rig.scheduler.train(rig.training)
    begun = [rig.workers.next_begun() for _ in range(4)]
    rig.scheduler.train(None)
    for key in begun:
        rig.workers.end(key)
    # The rollout workers's places are free again: all four have been delivered.
    assert len(rig.scheduler.evaluate([], Sampling())) == 0
    evaluation = _evaluation(1)
    waiter = threading.Thread(target=rig.scheduler.evaluate, args=(evaluation, Sampling()))
    waiter.start()
    rig.workers.end(rig.workers.next_begun())
    waiter.join(LIMIT_S)
    assert not waiter.is_alive()
    assert rig.buffer.take() == []


def test_whoever_waits_is_told_that_the_crew_failed(rig):
    rig.workers.fail(RuntimeError("no actor stays alive"))
    with pytest.raises(RuntimeError, match="no actor stays alive"):
        rig.scheduler.evaluate(_evaluation(1), Sampling())
    with pytest.raises(RuntimeError, match="no actor stays alive"):
        rig.scheduler.check()


@pytest.mark.parametrize("ended", [SystemExit(1), KeyboardInterrupt()])
def test_whatever_ends_the_scheduler_fails_those_who_wait_for_it(rig, ended):
    rig.workers.fail(ended)
    with pytest.raises(RuntimeError, match=f"ended by {type(ended).__name__}"):
        rig.scheduler.evaluate(_evaluation(1), Sampling())


def test_no_group_is_admitted_while_admission_is_held(rig):
    with rig.scheduler.no_admission():
        rig.scheduler._loop._training = rig.training
        with pytest.raises(queue.Empty):
            rig.workers.begun.get(timeout=0.2)
        assert rig.gate.outstanding() == []
    assert rig.workers.next_begun().group == 0
    assert 0 in rig.gate.outstanding()


def test_what_was_played_before_an_interruption_is_delivered_and_not_played(rig):
    """Group 0 is known, and one member of group 1."""
    delivered = queue.Queue()

    def recall(requests):
        keys = [each.key for each in requests if each.key.group == 0 or each.key.member == 1]
        return [_result_of(key) for key in keys]

    def deliver(trajectory):
        with rig.scheduler.no_admission():  # is free: the learner may wait for it
            rig.buffer.add(trajectory)
        delivered.put(trajectory.episode.key)

    rig.scheduler.train(dataclasses.replace(rig.training, recall=recall, deliver=deliver))
    left = rig.workers.next_begun()
    assert (left.group, left.member) == (1, 0)
    rig.workers.end(left)
    keys = [delivered.get(timeout=LIMIT_S) for _ in range(4)]
    assert [(key.group, key.member) for key in keys] == [(0, 0), (0, 1), (1, 1), (1, 0)]
    assert [group.index for group in rig.buffer.take(timeout=LIMIT_S)] == [0, 1]
    assert rig.workers.begun.empty()


@pytest.mark.heavy
def test_a_publish_ends_the_groups_that_it_makes_too_old(rig):
    gate = StalenessGate(alpha=0.5, groups_per_step=2)
    buffer = ReplayBuffer(gate, GroupSize(GROUP_SIZE))
    changes = {"gate": gate, "deliver": buffer.add, "drop_overdue": buffer.drop_overdue}
    rig.scheduler.train(dataclasses.replace(rig.training, **changes))
    first = [rig.workers.next_begun() for _ in range(4)]  # of three groups that are admitted
    rig.workers.end(first[0])
    first.append(rig.workers.next_begun())
    assert [(key.group, key.member) for key in first[3:]] == [(1, 1), (2, 0)]  # (2, 1) waits
    rig.workers.starts |= {1: 1, 2: 0}
    gate.publish(1)
    gate.publish(2)  # what started in 0 is too old, what started in 1 is not
    assert rig.workers.abandoned.get(timeout=LIMIT_S) == [0, 2]
    assert gate.counts()["dropped_stale"] == 2
    for key in first[1:]:  # results of groups 0 and 2 that were under way are of no use
        rig.workers.end(key)
    begun = [rig.workers.next_begun() for _ in range(4)]
    assert [(key.group, key.member) for key in begun] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert [t.episode.key for t in buffer.held()] == first[2:4]
    rig.scheduler.check()


def test_what_would_be_too_old_for_the_next_step_ends_when_this_one_has_its_groups(rig):
    """Nothing is published meanwhile: the update may take long, and its places are free for it."""
    gate = StalenessGate(alpha=0.5, groups_per_step=2)
    buffer = ReplayBuffer(gate, GroupSize(GROUP_SIZE))
    changes = {"gate": gate, "deliver": buffer.add, "drop_overdue": buffer.drop_overdue}
    rig.scheduler.train(dataclasses.replace(rig.training, **changes))
    first = [rig.workers.next_begun() for _ in range(4)]
    rig.workers.starts |= {0: 0, 1: 0, 2: 0}
    for key in first:
        rig.workers.end(key)
    assert [group.index for group in buffer.take(timeout=LIMIT_S)] == [0, 1]
    gate.publish(1)
    last = [rig.workers.next_begun() for _ in range(4)]
    assert [(key.group, key.member) for key in last] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    rig.workers.starts |= {3: 1, 4: 1}
    for key in last[2:]:
        rig.workers.end(key)
    for _ in range(2):
        key = rig.workers.next_begun()
        assert key.group == 4
        rig.workers.end(key)
    assert [group.index for group in buffer.take(timeout=LIMIT_S)] == [3, 4]
    assert rig.workers.abandoned.get(timeout=LIMIT_S) == [2]
    assert gate.version == 1


def test_the_redundant_members_of_a_complete_group_end(rig):
    gate = StalenessGate(alpha=0.0, groups_per_step=2)
    buffer = ReplayBuffer(gate, GroupSize(1, redundant=1))
    changes = {"gate": gate, "deliver": buffer.add, "drop_overdue": buffer.drop_overdue}
    rig.scheduler.train(dataclasses.replace(rig.training, **changes))
    begun = [rig.workers.next_begun() for _ in range(4)]
    rig.workers.end(begun[1])
    assert rig.workers.abandoned.get(timeout=LIMIT_S) == [begun[1].group]
    rig.workers.end(begun[0])  # a result that was under way is of no use
    rig.workers.end(begun[2])
    assert rig.workers.abandoned.get(timeout=LIMIT_S) == [begun[2].group]
    groups = buffer.take(timeout=LIMIT_S)
    assert [group.members[0].episode.key for group in groups] == [begun[1], begun[2]]
    rig.scheduler.check()
