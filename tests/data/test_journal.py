"""The journal across the lives of a run: what a later one finds, and what it must not use."""

import dataclasses
import itertools
import shutil

import pytest

from ale_jax.config.engine import PLAIN, Sampling
from ale_jax.data.journal import Journal
from ale_jax.data.packing import text_turn
from ale_jax.data.quotas import ONE_DOMAIN, Quotas
from ale_jax.data.staleness import StalenessGate
from ale_jax.records import Prefix, RolloutRequest
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn

VERSION = 5  # to which the run is restored


class Events(list):
    def __call__(self, kind, detail, **fields):
        self.append({"kind": kind} | fields)


def played(group, member=0, versions=(VERSION,), **fields):
    turns = [make_turn([1], [2], version=version) for version in versions]
    return make_trajectory(group, member, turns, start_version=versions[0], **fields)


def request(trajectory):
    return RolloutRequest(trajectory.episode.key)


def gate(alpha=2.0, version=VERSION, quotas=ONE_DOMAIN):
    return StalenessGate(alpha, groups_per_step=2, version=version, quotas=quotas)


def write(folder, *trajectories):
    with Journal(folder, Events()) as journal:
        for each in trajectories:
            journal.append(each)


def recall(folder, first=0, is_open=lambda group: True, events=None, sampling=PLAIN):
    with Journal(folder, Events() if events is None else events) as journal:
        return journal.recall(range(first, VERSION + 1), is_open, sampling)


def groups(recalled, gate):
    """Of those that `recalled` gives when groups 0 to 9 are admitted, member 0 of each."""
    requests = [request(played(group)) for group in range(10)]
    return [t.episode.key.group for each in requests for t in recalled.take([each], gate)]


def test_what_was_written_before_a_kill_is_found_once(tmp_path):
    journal = Journal(tmp_path, Events())  # never closed
    journal.append(played(0, 0))
    journal.append(played(0, 1))
    events = Events()
    recalled = recall(tmp_path, events=events)
    requests = [request(played(0, member)) for member in range(3)]
    assert [t.episode.key for t in recalled.take(requests, gate())] == [r.key for r in requests[:2]]
    assert recalled.take(requests, gate()) == []
    assert events == [{"kind": "journal_recalled", "group": 0, "recalled": 2, "of": 3}]


def test_only_what_can_be_trained_on_is_written(tmp_path):
    write(tmp_path, played(0, status=Status.SANDBOX_LOST, reward=None), played(1, reward=0.0))
    assert groups(recall(tmp_path), gate()) == [1]


def test_tokens_of_weights_that_were_lost_are_not_used(tmp_path):
    write(
        tmp_path,
        played(0, versions=(4, 5)),
        played(1, versions=(5, 6)),
        played(2, versions=(6,)),
        make_trajectory(3, 0, start_version=6),  # in which nothing was written
    )
    assert groups(recall(tmp_path), gate()) == [0]
    assert groups(recall(tmp_path, first=5), gate()) == [], "nor of older ones that are not there"


def test_nothing_is_used_that_was_drawn_in_another_way_than_the_run_draws(tmp_path):
    cool = Sampling(temperature=0.7)
    write(tmp_path, played(0), dataclasses.replace(played(1), sampling=cool))
    assert groups(recall(tmp_path), gate()) == [0]
    assert groups(recall(tmp_path, sampling=cool), gate()) == [1]


def test_nothing_is_used_that_is_too_old(tmp_path):
    write(tmp_path, played(0, versions=(3,)), played(1, versions=(4,)))
    assert groups(recall(tmp_path), gate(alpha=1.0)) == [1]


def test_of_older_weights_no_more_groups_are_used_than_the_headroom_has(tmp_path):
    """Alpha 0.5 of two groups: one of a batch may be a version old, so the other must be new."""
    old, new = [played(group, versions=(4,)) for group in (0, 1)], [played(2), played(3)]
    write(tmp_path, *old, *new)
    assert groups(recall(tmp_path), gate(alpha=0.5)) == [0, 2, 3]


def test_each_domain_has_a_headroom_of_its_own(tmp_path):
    """Alpha 1 of two groups: of each domain, one group may be a version old."""
    write(tmp_path, *(played(group, versions=(4,)) for group in (0, 2, 4, 1, 3)), played(6))
    now = gate(alpha=1.0, quotas=Quotas.of_ratios((1, 1)))
    assert groups(recall(tmp_path), now) == [0, 1, 6]


def test_a_group_is_as_old_as_its_oldest_member(tmp_path):
    """Alpha 0.5 of two groups: only one group may have a member that began a version ago."""
    both = [(played(group, 0, (4,)), played(group, 1)) for group in (0, 1)]
    write(tmp_path, *both[0], *both[1])
    recalled, now = recall(tmp_path), gate(alpha=0.5)
    assert [len(recalled.take(list(map(request, each)), now)) for each in both] == [2, 0]


def test_after_the_next_publish_nothing_is_used(tmp_path):
    write(tmp_path, played(0), played(1))
    recalled, now = recall(tmp_path), gate()
    assert recalled.take([request(played(0))], now)
    now.publish(VERSION + 1)
    assert recalled.take([request(played(1))], now) == []


def test_groups_that_are_not_open_any_more_are_not_kept(tmp_path):
    write(tmp_path, played(0), played(1))
    assert groups(recall(tmp_path, is_open=lambda group: group == 1), gate()) == [1]


def test_an_episode_goes_on_after_the_very_prefix_turns(tmp_path):
    def after(ids, prompt=(1,)):
        key = dataclasses.replace(played(0).episode.key, num_prefix_turns=1)
        prefix = text_turn(prompt, ids, "look", "ls")
        return RolloutRequest(key, (prefix,), Prefix(("look", "a.txt"), ("ls",)))

    asked, own = after([2, 3]), make_turn([4], [5], version=VERSION)
    known = make_trajectory(0, 0, [*asked.prefix_turns, own], start_version=VERSION)
    episode = dataclasses.replace(known.episode, key=asked.key)
    write(tmp_path, dataclasses.replace(known, episode=episode, num_prefix_turns=1))
    assert recall(tmp_path).take([after([2, 9])], gate()) == []
    assert recall(tmp_path).take([after([2, 3], prompt=(9,))], gate()) == []
    assert recall(tmp_path).take([request(played(0))], gate()) == []
    assert len(recall(tmp_path).take([asked], gate())) == 1


@pytest.mark.parametrize("cut", [1, 60])
def test_an_interrupted_frame_is_no_event(tmp_path, cut):
    write(tmp_path, played(0), played(1))
    (segment,) = tmp_path.iterdir()
    segment.write_bytes(segment.read_bytes()[:-cut])
    events = Events()
    assert groups(recall(tmp_path, events=events), gate()) == [0]
    assert [event["kind"] for event in events] == ["journal_recalled"]


def test_damage_ends_the_reading_of_its_segment_only(tmp_path):
    write(tmp_path, played(0), played(1), played(2))
    write(tmp_path, played(3))
    segment, _ = sorted(tmp_path.iterdir())
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1  # in the second of three frames of equal length
    segment.write_bytes(content)
    events = Events()
    assert groups(recall(tmp_path, events=events), gate()) == [0, 3]
    (damaged,) = [event for event in events if event["kind"] == "journal_damaged"]
    assert damaged["unused_bytes"] == 2 * len(content) // 3


def test_segments_go_when_the_newest_durable_checkpoint_needs_none_of_their_groups(tmp_path):
    folder, copies = tmp_path / "journal", itertools.count()

    def found():
        """By a run that is resumed now."""
        return groups(recall(shutil.copytree(folder, tmp_path / str(next(copies)))), gate())

    write(folder, played(7))  # an earlier life
    with Journal(folder, Events()) as journal:
        journal.append(played(0))
        journal.append(played(1))
        assert found() == [0, 1, 7]
        journal.begin_segment(lambda group: True)
        assert found() == [0, 1], "the weights of an earlier life may differ from now on"
        journal.append(played(2))
        journal.begin_segment(lambda group: group in (1, 2))
        assert found() == [0, 1, 2], "group 1 is still open"
        journal.begin_segment(lambda group: group == 2)
        assert found() == [2]
        journal.begin_segment(lambda group: False)
        assert found() == []


def test_what_is_too_large_is_skipped_with_an_event(tmp_path, monkeypatch):
    monkeypatch.setattr("ale_jax.data.trajectory_frames.MAX_HEADER_BYTES", 10)
    events = Events()
    with Journal(tmp_path, events) as journal:
        journal.append(played(4, member=1))
    assert events == [{"kind": "journal_skipped", "group": 4, "member": 1}]
