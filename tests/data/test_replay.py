import threading
from collections import Counter

import pytest

from ale_jax.data.quotas import ONE_DOMAIN
from ale_jax.data.replay import GroupSize, ReplayBuffer
from ale_jax.data.staleness import Drop, StalenessGate
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory
from tests.rows import each_row


def make(alpha=1.0, groups_per_step=2, group_size=2, max_uses=1, quotas=ONE_DOMAIN, **kwargs):
    gate = StalenessGate(alpha, groups_per_step, max_uses=max_uses, quotas=quotas)
    return gate, ReplayBuffer(gate, GroupSize(group_size), **kwargs)


def play(gate, buffer, group, start_version=None, statuses=(Status.FINISHED, Status.FINISHED)):
    start = gate.version if start_version is None else start_version
    assert gate.admit(group)
    for member, status in enumerate(statuses):
        reward = 1.0 if status is Status.FINISHED else None
        buffer.add(
            make_trajectory(group, member, status=status, reward=reward, start_version=start)
        )


def indices(groups):
    return [g.index for g in groups]


def test_a_group_waits_for_its_last_member():
    gate, buffer = make(groups_per_step=1)
    gate.admit(0)
    buffer.add(make_trajectory(0, member=1))
    assert buffer.take() == []
    buffer.add(make_trajectory(0, member=0))
    (group,) = buffer.take()
    assert [t.episode.key.member for t in group.members] == [0, 1]


def test_what_is_held_is_seen_and_stays():
    gate, buffer = make(groups_per_step=1)
    assert buffer.held() == []
    gate.admit(1)
    buffer.add(make_trajectory(1, member=1))
    play(gate, buffer, 0)
    seen = [(t.episode.key.group, t.episode.key.member) for t in buffer.held()]
    assert seen == [(0, 0), (0, 1), (1, 1)]
    assert indices(buffer.take()) == [0]
    assert len(buffer.held()) == 1


def test_the_oldest_groups_come_first_whatever_order_they_finished_in():
    gate, buffer = make()
    for group in (3, 1, 0, 2):
        play(gate, buffer, group)
    assert indices(buffer.take()) == [0, 1]
    gate.publish(1)
    assert indices(buffer.take()) == [2, 3]


def test_no_partial_steps():
    gate, buffer = make()
    play(gate, buffer, 0)
    assert buffer.take() == []
    assert gate.counts()["waiting"] == 1


def test_group_without_a_valid_member_is_discarded_and_its_permit_returns():
    gate, buffer = make(alpha=0, groups_per_step=1)
    play(gate, buffer, 0, statuses=(Status.SANDBOX_LOST, Status.CANCELLED))
    assert buffer.take() == []
    assert gate.counts()["dropped_failed"] == 1
    play(gate, buffer, 1, statuses=(Status.SANDBOX_LOST, Status.FINISHED))
    (group,) = buffer.take()
    assert (group.index, len(group.members), len(group.valid)) == (1, 2, 1)


def test_age_is_that_of_the_oldest_valid_member():
    gate, buffer = make(alpha=5, groups_per_step=1, group_size=3)
    gate.publish(1)
    gate.publish(2)
    gate.admit(0)
    lost = Status.SANDBOX_LOST
    buffer.add(make_trajectory(0, 0, status=lost, reward=None, start_version=0))
    buffer.add(make_trajectory(0, 1, start_version=1))
    buffer.add(make_trajectory(0, 2, start_version=2))
    assert buffer.take()[0].start_version == 1


def test_a_stale_group_is_never_handed_out():
    gate, buffer = make(alpha=1, groups_per_step=1)
    play(gate, buffer, 0, start_version=0)
    play(gate, buffer, 1, start_version=0)
    gate.publish(1)
    gate.publish(2)
    play(gate, buffer, 2, start_version=1)
    assert indices(buffer.take()) == [2]
    assert gate.counts()["dropped_stale"] == 2


def test_a_group_that_can_only_come_back_too_old_is_dropped_while_it_is_played():
    gate, buffer = make(alpha=1, groups_per_step=2, group_size=2)
    for group in range(4):
        assert gate.admit(group)
    buffer.add(make_trajectory(0, 0, start_version=0))
    lost = {"status": Status.SANDBOX_LOST, "reward": None}
    buffer.add(make_trajectory(1, 0, start_version=0, **lost))  # it does not count
    started = {2: 0, 3: 1}
    gate.publish(1)
    assert buffer.drop_overdue(started) == []
    gate.publish(2)
    assert buffer.drop_overdue(started) == [0, 2]
    assert gate.outstanding() == [1, 3]
    assert gate.counts()["dropped_stale"] == 2
    assert [t.episode.key.group for t in buffer.held()] == [1]
    assert buffer.drop_overdue(started) == [], "each of them once"


def test_what_would_be_too_old_for_the_next_step_is_used_first():
    gate, buffer = make(alpha=1, groups_per_step=2)
    play(gate, buffer, 9)
    gate.publish(1)
    for group in range(3):
        play(gate, buffer, group)
    assert indices(buffer.take()) == [0, 9]
    gate.publish(2)
    assert indices(buffer.take()) == [1, 2] and gate.counts()["dropped_stale"] == 0


def test_who_asks_is_told_of_each_group_that_is_dropped():
    dropped = []
    gate = StalenessGate(alpha=1, groups_per_step=1)
    buffer = ReplayBuffer(gate, GroupSize(2), on_drop=dropped.append)
    play(gate, buffer, 0, statuses=(Status.SANDBOX_LOST, Status.CANCELLED))
    play(gate, buffer, 1, start_version=0)
    gate.admit(2)
    gate.publish(1)
    gate.publish(2)
    buffer.drop_overdue({2: 0})
    assert buffer.take() == []
    assert [(d.index, d.reason, len(d.members)) for d in dropped] == [
        (0, Drop.FAILED, 2),
        (2, Drop.STALE, 0),
        (1, Drop.STALE, 2),
    ]


def test_a_group_knows_when_it_was_admitted():
    gate, buffer = make(alpha=1, groups_per_step=1)
    play(gate, buffer, 7)
    gate.publish(1)
    play(gate, buffer, 3)
    taken = [*buffer.take(), *buffer.take()]
    known = [(g.index, g.admission.order, g.admission.version) for g in taken]
    assert known == [(7, 0, 0), (3, 1, 1)]


def test_fractional_alpha_limits_how_many_are_one_version_older():
    """alpha 0.5 of 4 groups: two of a batch may be one version old, so its mean age is <= 0.5."""
    gate, buffer = make(alpha=0.5, groups_per_step=4)
    gate.publish(1)
    for group in range(3):
        play(gate, buffer, group, start_version=0)
    for group in range(3, 6):
        play(gate, buffer, group, start_version=1)
    assert indices(buffer.take()) == [0, 1, 3, 4]


@each_row("alpha", [0, 0.5, 1, 1.5, 2.25])
def test_in_order_nothing_is_dropped_and_the_mean_age_settles_at_alpha(alpha):
    """The theorem of docs/staleness.md, with rollouts that always run as far ahead as they may."""
    gate, buffer = make(alpha=alpha, groups_per_step=4)
    group = 0
    for step in range(8):
        while gate.accepted < gate.capacity:
            play(gate, buffer, group)
            group += 1
        ages = [gate.version - g.start_version for g in buffer.take()]
        gate.publish(step + 1)
    assert gate.counts()["dropped_stale"] == 0
    assert sum(ages) / 4 == alpha


def test_a_filled_queue_waits_for_all_that_may_be_admitted():
    gate, buffer = make(fill=True)
    for group in range(3):
        play(gate, buffer, group)
    assert buffer.take() == []
    gate.admit(3)
    buffer.add(make_trajectory(3, member=0))
    assert buffer.take() == []
    buffer.add(make_trajectory(3, member=1))
    assert indices(buffer.take()) == [0, 1]


def test_a_filled_queue_waits_for_the_one_that_takes_a_lost_groups_place():
    gate, buffer = make(alpha=0.5, fill=True)
    play(gate, buffer, 0)
    play(gate, buffer, 1)
    play(gate, buffer, 2, statuses=(Status.SANDBOX_LOST, Status.SANDBOX_LOST))
    assert buffer.take() == []
    play(gate, buffer, 3)
    assert indices(buffer.take()) == [0, 1]


@each_row("alpha", [0, 1, 2, 4])
def test_in_a_filled_queue_every_age_is_alpha(alpha):
    """Offered to the learner after every group: it takes none before the queue is full."""
    gate, buffer = make(alpha=alpha, fill=True)
    group = 0
    for step in range(8):
        while not (batch := buffer.take()):
            play(gate, buffer, group)
            group += 1
        assert {gate.version - g.start_version for g in batch} == {min(step, alpha)}
        gate.publish(step + 1)
    assert gate.counts()["dropped_stale"] == 0


def test_max_uses():
    gate, buffer = make(alpha=1, groups_per_step=1, max_uses=2)
    play(gate, buffer, 0)
    assert indices(buffer.take()) == [0]
    gate.publish(1)
    assert indices(buffer.take()) == [0]
    assert buffer.take() == []
    assert gate.counts()["trained"] == 1


def test_a_used_group_that_grows_stale_returns_no_permit():
    gate, buffer = make(alpha=0, groups_per_step=1, max_uses=2)
    play(gate, buffer, 0)
    buffer.take()
    gate.publish(1)
    assert buffer.take() == []
    assert gate.counts()["dropped_stale"] == 0 and gate.accepted == 1


@each_row("alpha,fill", [(1, False), (2.5, False), (4, False), (4, True)])
def test_with_reuse_fewer_groups_are_played_and_none_in_vain(alpha, fill):
    """Rollouts are played at once, as many as the gate allows. Some groups are too old for their
    second use."""
    gate, buffer = make(alpha=alpha, groups_per_step=4, max_uses=2, fill=fill)
    admitted, uses = 0, Counter()
    for step in range(100):
        batch = []
        while not batch:
            while gate.next_domain() is not None:
                play(gate, buffer, admitted)
                admitted += 1
            batch = buffer.take()
        assert [uses[g.index] for g in batch] == [int(g.is_reused) for g in batch]
        uses.update(indices(batch))
        gate.publish(step + 1)
    assert sum(uses.values()) == 400 and gate.counts()["trained"] == len(uses)
    assert gate.counts()["dropped_stale"] == 0
    assert 200 <= len(uses) <= admitted <= 230


def test_synchronous_training_leaves_nothing_behind():
    gate, buffer = make(alpha=0)
    for step in range(3):
        for group in (2 * step, 2 * step + 1):
            play(gate, buffer, group)
        assert indices(buffer.take()) == [2 * step, 2 * step + 1]
        assert gate.outstanding() == []
        gate.publish(step + 1)


def test_a_trajectory_comes_once_and_only_if_its_group_is_in_flight():
    gate, buffer = make()
    with pytest.raises(AssertionError, match="not in flight"):
        buffer.add(make_trajectory(0, 0))
    gate.admit(0)
    buffer.add(make_trajectory(0, 0))
    with pytest.raises(AssertionError, match="twice"):
        buffer.add(make_trajectory(0, 0))
    with pytest.raises(AssertionError):
        buffer.add(make_trajectory(0, 2))  # group_size is 2
    buffer.add(make_trajectory(0, 1))
    with pytest.raises(AssertionError, match="not in flight"):
        buffer.add(make_trajectory(0, 1))


@pytest.mark.parametrize("field", ["trained", "max_uses", "groups_per_step"])
def test_bad_sizes_are_refused(field):
    with pytest.raises(ValueError, match=f"{field} 0"):
        GroupSize(0) if field == "trained" else make(**{field: 0})


def test_producers_and_a_learner_in_threads():
    """Four producers, one learner, 25 steps: each group is trained once, nobody waits for ever."""
    gate, buffer = make(alpha=1.5, groups_per_step=2)
    indices_left = iter(range(10**6))
    lock, stop, over = threading.Lock(), threading.Event(), []

    def produce():
        while not stop.is_set():
            with lock:
                group = next(indices_left)
            while not gate.admit(group, timeout=0.01):
                if stop.is_set():
                    return
            start = gate.version
            for member in range(2):
                buffer.add(make_trajectory(group, member, start_version=start))
            if gate.accepted > gate.capacity:
                over.append(group)

    producers = [threading.Thread(target=produce) for _ in range(4)]
    for thread in producers:
        thread.start()
    trained = []
    try:
        for step in range(25):
            batch = buffer.take(timeout=60.0)
            assert len(batch) == 2
            assert all(gate.version - g.start_version <= 2 for g in batch)
            trained += indices(batch)
            gate.publish(step + 1)
    finally:
        stop.set()
        for thread in producers:
            thread.join(60.0)
    assert len(set(trained)) == len(trained) == 50
    assert over == []
